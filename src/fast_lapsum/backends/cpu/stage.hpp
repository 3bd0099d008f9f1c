// Rows that lie across the memory, a few at a time in contiguous copies: they are neighbours score
// by score, and one row read alone would take a cache line for each of its scores.

#pragma once

#include <memory>
#include <mutex>

#include "call.hpp"
#include "transpose.hpp"

namespace {

constexpr int64_t kStagedRows = 16;       // floats of a cache line
constexpr int64_t kStageBytes = 8 << 20;  // of longer rows fewer are copied at a time
constexpr int64_t kStagedScores = 4096;   // that a thread copies at a time
constexpr int64_t kStageAlignment = 64;

// Rows of n scores, `pitch` apart: not a power of two, which would crowd them into a few places of
// the cache.
int64_t stage_pitch(int64_t n) { return (n + 15) / 16 * 16 + 16; }

// A tensor's rows in a contiguous copy.
struct StagedRows {
    char* data = nullptr;  // of the tensor's first row
    int64_t stride = 0, row_stride = 0, bytes = 0, rows = 0, n = 0;
    char* copy = nullptr;

    int64_t size() const { return rows * stage_pitch(n) * bytes; }

    void read(int threads) const {
        each_part(threads, [&](auto element, int64_t first, int64_t count) {
            using Element = decltype(element);
            copy_in(across<Element>(), rows, first, count, reinterpret_cast<Element*>(copy),
                    stage_pitch(n));
        });
    }

    void write(int threads) const {
        each_part(threads, [&](auto element, int64_t first, int64_t count) {
            using Element = decltype(element);
            copy_out(across<Element>(), rows, first, count, reinterpret_cast<Element*>(copy),
                     stage_pitch(n));
        });
    }

   private:
    template <class Element>
    Across<Element> across() const {
        return {reinterpret_cast<Element*>(data), stride, row_stride};
    }

    // work(0 of the element's type, first score, scores) for all parts of the rows.
    template <class Work>
    void each_part(int threads, Work work) const {
        const int64_t parts = (n + kStagedScores - 1) / kStagedScores;
        for_each(parts, rows * n >= kParallelScores ? threads : 1, 1, [&](int64_t part) {
            const int64_t first = part * kStagedScores, count = std::min(kStagedScores, n - first);
            if (bytes == 8) return work(double(), first, count);
            if (bytes == 4) return work(float(), first, count);
            bytes == 2 ? work(uint16_t(), first, count) : work(uint8_t(), first, count);
        });
    }
};

// Memory for copies, as much as there are threads at work.
class StagePool {
   public:
    explicit StagePool(int64_t bytes) : bytes_(bytes) {}

    using Memory = std::unique_ptr<char[]>;

    Memory take() {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (free_.empty()) return Memory(new char[size_t(bytes_ + kStageAlignment)]);
        Memory memory = std::move(free_.back());
        free_.pop_back();
        return memory;
    }

    void give_back(Memory memory) {
        const std::lock_guard<std::mutex> lock(mutex_);
        free_.push_back(std::move(memory));
    }

   private:
    int64_t bytes_;
    std::mutex mutex_;
    std::vector<Memory> free_;
};

// Rows along one dimension as inner rows, where neighbours are looked for.
Call with_rows_inside(Call call) {
    if (call.inner != 1) return call;
    std::swap(call.outer, call.inner);
    for (auto* tensor : {&call.scores, &call.mask, &call.budget, &call.temperature,
                         &call.warm_start, &call.grad, &call.out})
        std::swap(tensor->outer_stride, tensor->inner_stride);
    return call;
}

// Whether score i of neighbouring rows is neighbouring memory.
bool lies_across(const Call& call, const Tensor& tensor) {
    return tensor.data != nullptr && tensor.stride > 1 && tensor.inner_stride == 1 &&
           call.inner > 1 && call.n > 1;
}

// All rows of a call in groups of at most `size`, none of which goes from one run of rows to the
// next.
struct RowGroups {
    int64_t run, size, per_run, count;

    RowGroups(const Call& call, int64_t run_, int64_t size_)
        : run(run_),
          size(size_),
          per_run((run + size - 1) / size),
          count(call.outer * call.inner / std::max<int64_t>(run, 1) * per_run) {}

    int64_t first(int64_t group) const { return group / per_run * run + group % per_run * size; }
    int64_t rows(int64_t group) const { return std::min(size, run - group % per_run * size); }
};

// The same call on contiguous copies of some of its inner rows. What has one entry per row stays
// where it is, by the number of the row in the whole call.
class StagedCall {
   public:
    // How many rows to copy at a time; 0 where rows are read well as they are, or are too long.
    static int64_t rows_at_a_time(const Call& call) {
        const bool is_across = lies_across(call, call.scores) || lies_across(call, call.out) ||
                               lies_across(call, call.grad);
        if (!is_across) return 0;
        const int64_t fit = kStageBytes / bytes(call, 1);
        return fit > 1 ? std::min(fit, kStagedRows) : 0;
    }

    static int64_t bytes(const Call& call, int64_t rows) {
        const int64_t of_score = width(call.dtype) + width(call.out_dtype) +
                                 (call.grad.data == nullptr ? 0 : width(call.grad_dtype)) +
                                 (call.mask.data == nullptr ? 0 : 1);
        return rows * stage_pitch(call.n) * of_score;
    }

    StagedCall(const Call& call, int64_t first, int64_t rows, char* memory) : staged_(call) {
        const auto skip = [&](Tensor& tensor, int64_t bytes) {
            if (tensor.data != nullptr)
                tensor.data += (first / call.inner * tensor.outer_stride +
                                first % call.inner * tensor.inner_stride) *
                               bytes;
            tensor.outer_stride = 0;
        };
        staged_.outer = 1;
        staged_.inner = rows;
        skip(staged_.scores, width(call.dtype));
        skip(staged_.out, width(call.out_dtype));
        skip(staged_.grad, width(call.grad_dtype));
        skip(staged_.mask, 1);
        for (Tensor* tensor : {&staged_.budget, &staged_.temperature, &staged_.warm_start})
            skip(*tensor, sizeof(double));

        const auto address = reinterpret_cast<uintptr_t>(memory);
        char* next = memory + (kStageAlignment - address % kStageAlignment) % kStageAlignment;
        stage(staged_.scores, width(call.dtype), &scores_, &next);
        stage(staged_.grad, width(call.grad_dtype), &grad_, &next);
        stage(staged_.out, width(call.out_dtype), &out_, &next);
        stage(staged_.mask, 1, &mask_, &next);
    }

    const Call& read(int threads) const {
        for (const StagedRows* rows : {&scores_, &grad_, &mask_}) rows->read(threads);
        return staged_;
    }

    void write(int threads) const { out_.write(threads); }

   private:
    // Rows that are contiguous, or one number each, stay where they are; what is not given stays
    // away.
    void stage(Tensor& tensor, int64_t bytes, StagedRows* rows, char** next) {
        if (tensor.data == nullptr || tensor.stride <= 1) return;
        *rows = {tensor.data, tensor.stride, tensor.inner_stride, bytes, staged_.inner, staged_.n,
                 *next};
        *next += rows->size();
        tensor = {rows->copy, 0, stage_pitch(staged_.n), 1};
    }

    Call staged_;
    StagedRows scores_, grad_, mask_, out_;
};

}  // namespace
