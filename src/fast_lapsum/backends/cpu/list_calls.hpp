// Calls on several vectors that are one row: it is read and written where they lie. A row has the
// same bits however it is cut into vectors.

#pragma once

#include "mask_calls.hpp"

namespace {

// Vectors by their addresses, as one.
Parts parts_of(const ListCall& given, const int64_t* addresses, const int64_t* dtypes) {
    Parts parts;
    for (int64_t i = 0; i < given.count; ++i) {
        auto* data = reinterpret_cast<char*>(addresses[i]);
        if (given.sizes[i] > 0) parts.add({data, 1, dtypes[i]}, given.sizes[i]);
    }
    return parts;
}

// Of memory that malloc has given back to the system, every small page would be a fault. Vectors
// that lie next to each other share large pages.
void ask_for_large_pages(const ListCall& given) {
    constexpr int64_t kAsk = 256 << 10;
    if (given.outs == nullptr) return;
    for (int64_t i = 0; i < given.count; ++i) {
        const int64_t bytes = given.sizes[i] * width(given.out_dtypes[i]);
        if (bytes >= kAsk) ask_for_large_pages(reinterpret_cast<void*>(given.outs[i]), bytes);
    }
}

Strided as_one(const Parts& parts, int64_t dtype) { return {nullptr, 1, dtype, &parts}; }

template <class T>
Row<T> list_row(const Call& call, const Parts& scores, Worth enough) {
    Row<T> row;
    row.scores = as_one(scores, call.dtype);
    row.largest = call.largest != 0;
    row.n = call.n;
    row.threads = is_worth_threads(call, 1, call.n, enough) ? int(call.threads) : 1;
    row.most_passes = int(call.most_passes);
    return row;
}

template <class T>
int64_t list_forward(const ListCall& given) {
    const Call& call = given.call;
    ask_for_large_pages(given);
    const Parts scores = parts_of(given, given.scores, given.dtypes);
    Parts outs;
    if (given.outs != nullptr) outs = parts_of(given, given.outs, given.out_dtypes);
    Row<T> row = list_row<T>(call, scores, kDear);
    LeastLimit over_limit;
    forward_given<T>(call, Places(call.n), RowIndex(0, 0, 0), row, as_one(outs, call.out_dtype),
                     &over_limit);
    return over_limit.get();
}

template <class T>
void list_backward(const ListCall& given) {
    const Call& call = given.call;
    ask_for_large_pages(given);
    const Parts scores = parts_of(given, given.scores, given.dtypes);
    const Parts outs = parts_of(given, given.outs, given.out_dtypes);
    Row<T> row = list_row<T>(call, scores, kCheap);
    const RowIndex index(0, 0, 0);
    if (given.grads == nullptr) {  // one number, that of the threshold
        return backward_given<T>(call, index, row, index.strided(call.grad, call.grad_dtype),
                                 as_one(outs, call.out_dtype));
    }
    const Parts grads = parts_of(given, given.grads, given.grad_dtypes);
    backward_given<T>(call, index, row, as_one(grads, call.grad_dtype),
                      as_one(outs, call.out_dtype));
}

}  // namespace
