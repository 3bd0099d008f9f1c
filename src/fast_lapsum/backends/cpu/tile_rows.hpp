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

// Rows row(0) ... row(count - 1) into a tile of n scores each, whose other lanes repeat the first;
// shorter rows end in `filler`. `spare` has room for a tile.
template <class T, int kLanes, class RowAt>
void read_tile(RowAt row, int count, int64_t n, T filler, T* spare, T* tile) {
    bool is_across = count > 1 && row(0).n == n;
    for (int j = 1; j < count; ++j) {
        const Row<T>&before = row(j - 1), &after = row(j);
        is_across &= are_neighbours(before.scores, after.scores) && after.n == n &&
                     (after.mask == nullptr || after.mask - before.mask == 1);
    }
    if (!is_across) {
        const T* from[kLanes];
        for (int j = 0; j < count; ++j) {
            T* own = spare + j * n;
            from[j] = row(j).read(0, row(j).n, own);
            if (row(j).n == n) continue;
            if (from[j] != own) std::copy_n(from[j], row(j).n, own);
            std::fill(own + row(j).n, own + n, filler);
            from[j] = own;
        }
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

// The way back, into rows out(0) ... out(count - 1) of length(0) ... scores.
template <class T, int kLanes, class OutAt, class LengthAt>
void write_tile(OutAt out, LengthAt length, int count, int64_t n, const T* tile, T* spare) {
    bool is_across = count > 1 && length(0) == n;
    for (int j = 1; j < count; ++j)
        is_across &= are_neighbours(out(j - 1), out(j)) && length(j) == n;
    if (!is_across) {
        T* to[kLanes];
        for (int j = 0; j < count; ++j) {
            T* own = spare + j * n;
            to[j] = length(j) == n ? write_target(out(j), 0, own) : own;
        }
        separate(tile, n, count, to, Lanes<kLanes>());
        for (int j = 0; j < count; ++j) {
            T* direct = write_target(out(j), 0, static_cast<T*>(nullptr));
            if (direct != nullptr && direct != to[j]) std::copy_n(to[j], length(j), direct);
            write_chunk(out(j), 0, length(j), to[j]);
        }
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
