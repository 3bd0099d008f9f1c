// What a call says, as it comes from kernel.py: tensors by pointer and stride, and numbers. A row
// of it is named by a RowIndex.

#pragma once

#include <atomic>

#include "solve.hpp"
#include "write.hpp"

#ifdef __linux__
#include <sys/mman.h>
#endif

// A tensor seen as outer x inner rows. A null pointer stands for an argument that was not given.
struct Tensor {
    char* data;
    int64_t outer_stride, inner_stride, stride;  // in elements; a stride of 0: one number per row
};

// What a call writes beside the thresholds, or what it has the gradient of; _OUTPUT of kernel.py.
enum Output : int64_t { kMask = 0, kHardMask = 1, kLogMask = 2, kThreshold = 3 };

// Laid out as kernel.py packs it: eight bytes a field.
struct Call {
    int64_t dtype, out_dtype, grad_dtype;
    int64_t outer, inner, n;
    int64_t largest, output, threads, most_passes;
    Tensor scores, mask, budget, temperature, warm_start, grad, out;
    double budget_number, temperature_number;
    char* threshold;   // [outer, inner, 2] in the compute dtype
    double* d_budget;  // [outer, inner], backward
    double* d_temperature;
    int64_t* passes;  // [outer, inner] or null
};

// A call about the k selected scores of each row.
struct SelectCall {
    Call call;
    int64_t count, sorted;
    int64_t* indices;  // [outer, inner, count]
    char* values;      // the same: weights in out_dtype, or their gradient in grad_dtype
};

// A call on rows of several lengths. With `starts` they are segments of one vector, which the call
// has as outer rows without a stride; else the first scores of rows of one size.
struct RaggedCall {
    Call call;
    const int64_t* starts;   // [outer, inner] or null
    const int64_t* lengths;  // the same
};

// A call on several vectors as if they were one row: addresses and dtypes of contiguous scores, of
// their gradients (backward) and of what is written of them (or null).
struct ListCall {
    Call call;
    int64_t count;
    const int64_t *sizes, *scores, *dtypes, *grads, *grad_dtypes, *outs, *out_dtypes;
};

// A call for random masks: one uniform number in [0, 1) per row.
struct SampleCall {
    Call call;
    const double* start;  // [outer, inner]
};

namespace {

struct RowIndex {
    int64_t outer, inner;
    int64_t flat;  // its place in what has one entry per row

    RowIndex(int64_t outer_, int64_t inner_, int64_t flat_)
        : outer(outer_), inner(inner_), flat(flat_) {}

    RowIndex(const Call& call, int64_t row)
        : RowIndex(row / call.inner, row % call.inner, row) {}

    int64_t offset(const Tensor& tensor) const {
        return outer * tensor.outer_stride + inner * tensor.inner_stride;
    }

    Strided strided(const Tensor& tensor, int64_t dtype) const {
        return {tensor.data + offset(tensor) * width(dtype), tensor.stride, dtype};
    }

    double number(const Tensor& tensor, double otherwise) const {
        return tensor.data == nullptr
                   ? otherwise
                   : reinterpret_cast<const double*>(tensor.data)[offset(tensor)];
    }

    double budget(const Call& call) const { return number(call.budget, call.budget_number); }

    double temperature(const Call& call) const {
        return number(call.temperature, call.temperature_number);
    }
};

template <class T>
Row<T> make_row(const Call& call, const RowIndex& index, int threads) {
    Row<T> row;
    row.scores = index.strided(call.scores, call.dtype);
    row.mask = call.mask.data == nullptr
                   ? nullptr
                   : reinterpret_cast<const uint8_t*>(call.mask.data) + index.offset(call.mask);
    row.mask_stride = call.mask.stride;
    row.largest = call.largest != 0;
    row.n = call.n;
    row.threads = threads;
    row.most_passes = int(call.most_passes);
    return row;
}

template <class T>
void keep_threshold(const Call& call, const RowIndex& index, const Threshold& threshold,
                    int passes) {
    T* pair = reinterpret_cast<T*>(call.threshold) + 2 * index.flat;
    pair[0] = T(threshold.hi);
    pair[1] = T(threshold.lo);
    if (call.passes != nullptr) call.passes[index.flat] = passes;
}

template <class T>
Threshold kept_threshold(const Call& call, const RowIndex& index, double t) {
    const T* pair = reinterpret_cast<const T*>(call.threshold) + 2 * index.flat;
    Threshold threshold{double(pair[0]), double(pair[1]), false, false};
    threshold.is_hard = t < double(std::numeric_limits<T>::min()) || threshold.hi == kInfinity;
    return threshold;
}

void keep_gradient(const Call& call, const RowIndex& index, const RowGradient& gradient) {
    if (call.d_budget != nullptr) call.d_budget[index.flat] = gradient.budget;
    if (call.d_temperature != nullptr) call.d_temperature[index.flat] = gradient.temperature;
}

// The least number of valid scores of the rows whose budget is over it, or -1; rows tell at once.
class LeastLimit {
   public:
    void add(int64_t limit) {
        if (limit < 0) return;
        int64_t seen = least_.load();
        while ((seen < 0 || limit < seen) && !least_.compare_exchange_weak(seen, limit)) {
        }
    }
    int64_t get() const { return least_.load(); }

   private:
    std::atomic<int64_t> least_{-1};
};

// Fresh memory of this size costs more in page faults than the arithmetic that fills it: ask for
// large pages, which Linux commonly grants on request only.
void ask_for_large_pages(void* data, int64_t bytes) {
#ifdef __linux__
    constexpr uintptr_t kPage = 4096;
    const auto begin = (reinterpret_cast<uintptr_t>(data) + kPage - 1) / kPage * kPage;
    const auto end = (reinterpret_cast<uintptr_t>(data) + uintptr_t(bytes)) / kPage * kPage;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // a hint: may fail
#else
    (void)data;
    (void)bytes;
#endif
}

// The same for what a call writes, where that is one piece.
void ask_for_large_pages(const Call& call) {
    constexpr int64_t kAsk = 8 << 20;
    const Tensor& out = call.out;
    const bool inner_fits = call.inner == 1 || out.inner_stride == call.n;
    const bool outer_fits = call.outer == 1 || out.outer_stride == call.inner * call.n;
    const int64_t bytes = call.outer * call.inner * call.n * width(call.out_dtype);
    if (out.data == nullptr || out.stride != 1 || !inner_fits || !outer_fits) return;
    if (bytes >= kAsk) ask_for_large_pages(out.data, bytes);
}

}  // namespace
