// Squares of a tile, and rows that lie across the memory copied to where they are contiguous, and
// back.

#pragma once

#include "simd.hpp"

namespace {

// Squares of 16-byte vectors, which every instruction set has, are transposed in registers.
template <class T>
constexpr int kSquare = 16 / sizeof(T);

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define LAPSUM_HAS_SHUFFLE 1
#endif
#endif

#ifdef LAPSUM_HAS_SHUFFLE
typedef float Float4 __attribute__((vector_size(16)));
typedef double Double2 __attribute__((vector_size(16)));

template <class Vector, class T>
LAPSUM_INLINE Vector load_vector(const T* from) {
    Vector out;
    std::memcpy(&out, from, sizeof out);
    return out;
}

template <class Vector, class T>
LAPSUM_INLINE void store_vector(T* to, const Vector& value) {
    std::memcpy(to, &value, sizeof value);
}

LAPSUM_INLINE void transpose_square(const float* const* in, float* const* out) {
    const Float4 a = load_vector<Float4>(in[0]), b = load_vector<Float4>(in[1]);
    const Float4 c = load_vector<Float4>(in[2]), d = load_vector<Float4>(in[3]);
    const Float4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const Float4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const Float4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const Float4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    store_vector(out[0], __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5));
    store_vector(out[1], __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7));
    store_vector(out[2], __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5));
    store_vector(out[3], __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7));
}

LAPSUM_INLINE void transpose_square(const double* const* in, double* const* out) {
    const Double2 a = load_vector<Double2>(in[0]), b = load_vector<Double2>(in[1]);
    store_vector(out[0], __builtin_shufflevector(a, b, 0, 2));
    store_vector(out[1], __builtin_shufflevector(a, b, 1, 3));
}
#endif

template <class T>
LAPSUM_INLINE void transpose_square(const T* const* in, T* const* out) {
    for (int i = 0; i < kSquare<T>; ++i)
        for (int j = 0; j < kSquare<T>; ++j) out[j][i] = in[i][j];
}

// Rows that lie across the memory: score i of row j is at data[i * stride + j * row_stride].
template <class T>
struct Across {
    T* data;
    int64_t stride, row_stride;

    LAPSUM_MEMBER T* at(int64_t i, int64_t j) const { return data + i * stride + j * row_stride; }
};

LAPSUM_INLINE void fetch_ahead(const void* at) {
#if defined(__GNUC__)
    __builtin_prefetch(at);
#else
    (void)at;
#endif
}

// Scores [first, first + n) of some rows, to or from contiguous rows `pitch` apart: in blocks of
// one cache line of every row. Scores are asked for some time before they are needed, because each
// may lie in a page of its own, where no processor looks for it.
template <bool kIsBack, class T>
LAPSUM_INLINE void copy_rows_body(Across<T> across, int64_t rows, int64_t first, int64_t n,
                                  T* contiguous, int64_t pitch) {
    constexpr int64_t kSide = kSquare<T>, kBlock = 64 / sizeof(T), kFetched = 48;
    const int64_t stop = first + n;
    const int64_t whole_rows =
        sizeof(T) >= 4 && across.row_stride == 1 ? rows / kSide * kSide : 0;
    for (int64_t begin = first; begin < stop; begin += kBlock) {
        const int64_t end = std::min(begin + kBlock, stop);
        const int64_t squared = begin + (end - begin) / kSide * kSide;
        for (int64_t i = begin; i < end; ++i) fetch_ahead(across.at(i + kFetched, 0));
        for (int64_t j = 0; j < whole_rows; j += kSide) {
            for (int64_t i = begin; i < squared; i += kSide) {
                T *strip[kSide], *row[kSide];
                for (int64_t side = 0; side < kSide; ++side) {
                    strip[side] = across.data + (i + side) * across.stride + j;
                    row[side] = contiguous + (j + side) * pitch + i;
                }
                kIsBack ? transpose_square(row, strip) : transpose_square(strip, row);
            }
        }
        for (int64_t i = begin; i < end; ++i) {
            for (int64_t j = i < squared ? whole_rows : 0; j < rows; ++j) {
                T *one = across.at(i, j), *other = contiguous + j * pitch + i;
                kIsBack ? *one = *other : *other = *one;
            }
        }
    }
}

#define LAPSUM_COPY_ROWS(T)                                                                       \
    LAPSUM_CLONES void copy_in(Across<T> from, int64_t rows, int64_t first, int64_t n, T* to,     \
                               int64_t pitch) {                                                   \
        copy_rows_body<false>(from, rows, first, n, to, pitch);                                   \
    }                                                                                             \
    LAPSUM_CLONES void copy_out(Across<T> to, int64_t rows, int64_t first, int64_t n, T* from,    \
                                int64_t pitch) {                                                  \
        copy_rows_body<true>(to, rows, first, n, from, pitch);                                    \
    }

LAPSUM_COPY_ROWS(float)
LAPSUM_COPY_ROWS(double)
LAPSUM_COPY_ROWS(uint16_t)
LAPSUM_COPY_ROWS(uint8_t)

}  // namespace
