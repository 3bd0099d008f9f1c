// How the rows of a tile are read and written: as they lie where neighbouring rows are neighbours
// in memory, transposed where rows are contiguous, through a copy else.

#pragma once

#include "rows.hpp"
#include "tile.hpp"

namespace {

bool are_neighbours(const Strided& first, const Strided& second) {
    return first.stride != 1 && second.data - first.data == width(first.dtype);
}

// The lines of the tile that is `tiles` tiles after the one of rows of n scores from `first` on.
template <int kLanes>
Ahead ahead_of(const Strided& first, int64_t n, int64_t tiles) {
    constexpr int64_t kLine = 64;
    const int64_t bytes = width(first.dtype);
    if (first.stride == 1) return {first.data + tiles * kLanes * n * bytes, kLine};
    return {first.data + tiles * kLanes * bytes, first.stride * bytes};
}

// Rows row(0) ... row(count - 1) into a tile, whose other lanes repeat the first; `spare` has room
// for a tile.
template <class T, int kLanes, class RowAt>
void read_tile(RowAt row, int count, T* spare, T* tile) {
    const int64_t n = row(0).n;
    bool is_across = count > 1;
    for (int j = 1; j < count; ++j) {
        const Row<T>&before = row(j - 1), &after = row(j);
        is_across &= are_neighbours(before.scores, after.scores) &&
                     (after.mask == nullptr || after.mask - before.mask == 1);
    }
    if (!is_across) {
        const T* from[kLanes];
        for (int j = 0; j < count; ++j) from[j] = row(j).read(0, n, spare + j * n);
        std::fill(from + count, from + kLanes, from[0]);
        return interleave(from, n, tile, Lanes<kLanes>());
    }
    Row<T> across = row(0);  // one score of every row
    const int64_t step = across.scores.stride * width(across.scores.dtype);
    const int64_t mask_step = across.mask == nullptr ? 0 : across.mask_stride;
    across.scores.stride = across.mask_stride = 1;
    for (int64_t i = 0; i < n; ++i) {
        T* to = tile + i * kLanes;
        const T* from = across.read(0, count, to);
        if (from != to) std::copy_n(from, count, to);
        std::fill(to + count, to + kLanes, to[0]);
        across.scores.data += step;
        across.mask += mask_step;
    }
}

// The way back, into rows out(0) ... out(count - 1).
template <class T, int kLanes, class OutAt>
void write_tile(OutAt out, int count, int64_t n, const T* tile, T* spare) {
    bool is_across = count > 1;
    for (int j = 1; j < count; ++j) is_across &= are_neighbours(out(j - 1), out(j));
    if (!is_across) {
        T* to[kLanes];
        for (int j = 0; j < count; ++j) to[j] = write_target(out(j), 0, spare + j * n);
        separate(tile, n, count, to, Lanes<kLanes>());
        for (int j = 0; j < count; ++j) write_chunk(out(j), 0, n, to[j]);
        return;
    }
    Strided across = out(0);
    const int64_t step = across.stride * width(across.dtype);
    across.stride = 1;
    for (int64_t i = 0; i < n; ++i, across.data += step) {
        T* to = write_target(across, 0, spare);
        std::copy_n(tile + i * kLanes, count, to);
        write_chunk(across, 0, count, to);
    }
}

}  // namespace
