// Calls on rows of several lengths: each is a row of a call of its own. Short ones share tiles with
// others of about their length.

#pragma once

#include "mask_calls.hpp"

namespace {

// One row as a call has it whose rows are all of this length.
struct OwnRow {
    Call call;
    RowIndex index;
};

OwnRow own_row(const RaggedCall& given, int64_t row) {
    OwnRow own{given.call, RowIndex(given.call, row)};
    Call& call = own.call;
    call.n = given.lengths[own.index.flat];
    if (given.starts == nullptr) return own;
    const int64_t start = given.starts[own.index.flat];
    const auto skip = [&](Tensor& tensor, int64_t bytes) {
        if (tensor.data != nullptr) tensor.data += start * tensor.stride * bytes;
    };
    skip(call.scores, width(call.dtype));
    skip(call.mask, 1);
    skip(call.grad, width(call.grad_dtype));
    skip(call.out, width(call.out_dtype));
    return own;
}

// Those of a tile.
struct OwnRows {
    std::vector<OwnRow> rows;

    OwnRows(const RaggedCall& given, const int64_t* numbers, int count) {
        rows.reserve(size_t(count));
        for (int j = 0; j < count; ++j) rows.push_back(own_row(given, numbers[j]));
    }
};

// What is beyond the end of a row of one size.
template <class T>
void fill_rest(const RaggedCall& given, int64_t row, T value) {
    const Call& call = given.call;
    if (given.starts != nullptr || call.out.data == nullptr) return;
    const RowIndex index(call, row);
    const int64_t length = given.lengths[index.flat];
    Strided out = index.strided(call.out, call.out_dtype);
    out.data += length * out.stride * width(out.dtype);
    Row<T> rest;
    rest.n = call.n - length;
    fill(rest, out, value);
}

// The rows of a call by their length: those that several threads read together, those that are read
// alone, longest first, and short ones, shortest first.
struct ByLength {
    std::vector<int64_t> shared, alone, tiled;
    int64_t scores = 0;

    ByLength(const RaggedCall& given, int64_t longest_tiled) {
        const int64_t rows = given.call.outer * given.call.inner;
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t n = given.lengths[row];
            scores += n;
            (n >= kParallelScores ? shared : n > 0 && n <= longest_tiled ? tiled : alone)
                .push_back(row);
        }
        const auto is_longer = [&](int64_t a, int64_t b) {
            return given.lengths[a] > given.lengths[b];
        };
        std::stable_sort(shared.begin(), shared.end(), is_longer);
        std::stable_sort(alone.begin(), alone.end(), is_longer);
        std::stable_sort(tiled.begin(), tiled.end(),
                         [&](int64_t a, int64_t b) { return is_longer(b, a); });
    }
};

// one(row, threads) for rows by themselves, tile(rows, count, lanes) for several short ones.
template <class T, class One, class Tile>
void each_ragged_row(const RaggedCall& given, Worth enough, int64_t longest_tiled, One one,
                     Tile tile) {
    constexpr int kLanes = Real<T>::lanes, kFew = kSquare<T>;
    const Call& call = given.call;
    ByLength rows(given, longest_tiled);
    const auto all = int(call.threads);
    const bool is_worth =
        is_worth_threads(call, call.outer * call.inner, rows.scores, enough);
    const int threads = is_worth ? all : 1;
    if (int64_t(rows.shared.size()) >= 8 * threads) {  // enough to be read side by side
        rows.alone.insert(rows.alone.begin(), rows.shared.begin(), rows.shared.end());
    } else {
        for (const int64_t row : rows.shared) one(row, threads);
    }
    const auto alone = int64_t(rows.alone.size()), tiled = int64_t(rows.tiled.size());
    const int64_t tiles = (tiled + kLanes - 1) / kLanes;
    for_each(alone + tiles, threads, 1, [&](int64_t i) {
        if (i < alone) return one(rows.alone[size_t(i)], 1);
        const int64_t first = (i - alone) * kLanes;
        const auto count = int(std::min<int64_t>(kLanes, tiled - first));
        const int64_t* of_tile = rows.tiled.data() + first;
        if (count > kFew) return tile(of_tile, count, Lanes<kLanes>());
        tile(of_tile, count, Lanes<kFew>());
    });
}

template <class T>
int64_t ragged_forward(const RaggedCall& given) {
    LeastLimit over_limit;
    const T nothing =
        given.call.output == kLogMask ? -std::numeric_limits<T>::infinity() : T(0);
    each_ragged_row<T>(
        given, kDear, kTileRow,
        [&](int64_t row, int threads) {
            const OwnRow own = own_row(given, row);
            forward_row<T>(own.call, Places(own.call.n), own.index, threads, &over_limit);
            fill_rest(given, row, nothing);
        },
        [&](const int64_t* rows, int count, auto lanes) {
            const OwnRows own(given, rows, count);
            const auto at = [&](int j) -> const OwnRow& { return own.rows[size_t(j)]; };
            forward_tile<T>(at, count, lanes, &over_limit);
            for (int j = 0; j < count; ++j) fill_rest(given, rows[j], nothing);
        });
    return over_limit.get();
}

template <class T>
void ragged_backward(const RaggedCall& given) {
    const int64_t longest_tiled = given.call.output == kThreshold ? 0 : kTileGradient;
    each_ragged_row<T>(
        given, kCheap, longest_tiled,
        [&](int64_t row, int threads) {
            const OwnRow own = own_row(given, row);
            backward_row<T>(own.call, own.index, threads);
            fill_rest(given, row, T(0));
        },
        [&](const int64_t* rows, int count, auto lanes) {
            const OwnRows own(given, rows, count);
            const auto at = [&](int j) -> const OwnRow& { return own.rows[size_t(j)]; };
            backward_tile<T>(at, count, lanes);
            for (int j = 0; j < count; ++j) fill_rest(given, rows[j], T(0));
        });
}

}  // namespace
