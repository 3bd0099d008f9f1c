// Sorts the rows of a tile, each in its lane, the largest score first: a bitonic network. It
// compares the same places whatever the scores, so lanes never part.

#pragma once

#include "simd.hpp"

// Lambdas that are part of a loop compiled for several instruction sets.
#if defined(__GNUC__)
#define LAPSUM_LAMBDA __attribute__((always_inline))
#else
#define LAPSUM_LAMBDA
#endif

namespace {

// Few rows take narrow vectors, which cost less; a tag, so that both widths have functions.
template <int kCount>
struct Lanes {
    static constexpr int count = kCount;
};

// Some lanes of a tile: those of one register, `kBytes` wide. Vectors that are wider than the
// instruction set's would be taken apart lane by lane.
template <class T, int kLanes, int kBytes>
struct Network {
    typedef T Vector __attribute__((vector_size(kBytes)));
    // In memory, at any address: copied as bytes it may go in halves, which wait for each other.
    typedef T Stored __attribute__((vector_size(kBytes), aligned(sizeof(T)), may_alias));
    static constexpr int kWidth = kBytes / sizeof(T);
    static constexpr int kHeld = 8;  // vectors that are sorted in registers

    T* tile;
    int64_t n;
    alignas(64) T nothing[kWidth];  // stands for places past the end; it never moves up
    Vector differences = {};        // of scores and themselves: NaN for what is not finite

    LAPSUM_MEMBER Network(T* tile_, int64_t n_) : tile(tile_), n(n_) {
        std::fill_n(nothing, kWidth, -std::numeric_limits<T>::infinity());
    }

    // Where score i is; only the last runs of a tile have places past the end.
    template <bool kIsWhole>
    LAPSUM_MEMBER T* at(int64_t i) {
        return kIsWhole || i < n ? tile + i * kLanes : nothing;
    }

    static LAPSUM_MEMBER void load(const T* from, Vector& out) {
        out = *reinterpret_cast<const Stored*>(from);
    }

    static LAPSUM_MEMBER void store(const Vector& value, T* to) {
        *reinterpret_cast<Stored*>(to) = value;
    }

    // The larger score of each lane to a, the smaller to b: two comparisons, each of which is one
    // instruction with its choice. (0 and -0 may become the same of the two.)
    static LAPSUM_MEMBER void exchange(Vector& a, Vector& b) {
        const Vector x = a, y = b;
        a = x > y ? x : y;
        b = x < y ? x : y;
    }

    // Eight vectors through `steps(a, ..., h)` in registers.
    template <bool kIsWhole, class Steps>
    LAPSUM_MEMBER void hold(int64_t first, Steps steps) {
        hold<kIsWhole>(tile, first, steps);
    }

    template <bool kIsWhole, class Steps>
    LAPSUM_MEMBER void hold(const T* unsorted, int64_t first, Steps steps) {
        T* const to[kHeld] = {at<kIsWhole>(first),     at<kIsWhole>(first + 1),
                              at<kIsWhole>(first + 2), at<kIsWhole>(first + 3),
                              at<kIsWhole>(first + 4), at<kIsWhole>(first + 5),
                              at<kIsWhole>(first + 6), at<kIsWhole>(first + 7)};
        const auto from = [&](int i) LAPSUM_LAMBDA {
            return kIsWhole ? unsorted + (first + i) * kLanes : to[i];
        };
        Vector a, b, c, d, e, f, g, h;
        load(from(0), a), load(from(1), b), load(from(2), c), load(from(3), d);
        load(from(4), e), load(from(5), f), load(from(6), g), load(from(7), h);
        steps(a, b, c, d, e, f, g, h);
        store(a, to[0]), store(b, to[1]), store(c, to[2]), store(d, to[3]);
        store(e, to[4]), store(f, to[5]), store(g, to[6]), store(h, to[7]);
    }

    // Eight scores of an unsorted tile, by Batcher's 19 comparisons.
    template <bool kIsWhole>
    LAPSUM_MEMBER void sort_held(const T* unsorted, int64_t first) {
        for (int64_t i = first; i < (kIsWhole ? first : n); ++i) {
            Vector x;
            load(unsorted + i * kLanes, x);
            differences += x - x;
            store(x, tile + i * kLanes);
        }
        hold<kIsWhole>(unsorted, first, [&](Vector& a, Vector& b, Vector& c, Vector& d, Vector& e,
                                            Vector& f, Vector& g, Vector& h) LAPSUM_LAMBDA {
            if (kIsWhole)
                differences += ((a - a) + (b - b)) + ((c - c) + (d - d)) + ((e - e) + (f - f)) +
                               ((g - g) + (h - h));
            exchange(a, b), exchange(c, d), exchange(e, f), exchange(g, h);
            exchange(a, c), exchange(b, d), exchange(e, g), exchange(f, h);
            exchange(b, c), exchange(f, g);
            exchange(a, e), exchange(b, f), exchange(c, g), exchange(d, h);
            exchange(c, e), exchange(d, f);
            exchange(b, c), exchange(d, e), exchange(f, g);
        });
    }

    template <bool kIsWhole>
    LAPSUM_MEMBER void merge_held(int64_t first) {  // over distances of 4, 2 and 1
        hold<kIsWhole>(first, [](Vector& a, Vector& b, Vector& c, Vector& d, Vector& e, Vector& f,
                                 Vector& g, Vector& h) LAPSUM_LAMBDA {
            exchange(a, e), exchange(b, f), exchange(c, g), exchange(d, h);
            exchange(a, c), exchange(b, d), exchange(e, g), exchange(f, h);
            exchange(a, b), exchange(c, d), exchange(e, f), exchange(g, h);
        });
    }

    // Two steps of a merge in one sweep.
    static LAPSUM_MEMBER void merge_four(T* a_at, T* b_at, T* c_at, T* d_at, bool is_mirrored) {
        Vector a, b, c, d;
        load(a_at, a), load(b_at, b), load(c_at, c), load(d_at, d);
        exchange(a, is_mirrored ? d : c);
        exchange(b, is_mirrored ? c : d);
        exchange(a, b);
        exchange(c, d);
        store(a, a_at), store(b, b_at), store(c, c_at), store(d, d_at);
    }

    // Two sorted runs. Comparing each score with its mirror image splits them into a larger and a
    // smaller half; halves of the distance go on from there, two in each sweep.
    template <bool kIsWhole>
    LAPSUM_MEMBER void merge(int64_t first, int64_t run) {
        const int64_t last = first + 2 * run - 1, stop = std::min(last + 1, n);
        for (int64_t i = 0; i < run / 2; ++i)
            merge_four(at<kIsWhole>(first + i), at<kIsWhole>(first + i + run / 2),
                       at<kIsWhole>(last - i - run / 2), at<kIsWhole>(last - i), true);
        int64_t step = run / 4;
        for (; step >= 2 * kHeld; step /= 4) {
            for (int64_t from = first; from < stop; from += 2 * step)
                for (int64_t i = from; i < from + step / 2; ++i)
                    merge_four(at<kIsWhole>(i), at<kIsWhole>(i + step / 2), at<kIsWhole>(i + step),
                               at<kIsWhole>(i + step + step / 2), false);
        }
        if (step == kHeld) {
            for (int64_t from = first; from < stop; from += 2 * kHeld) {
                for (int64_t i = from; i < from + kHeld; ++i) {
                    Vector a, b;
                    load(at<kIsWhole>(i), a), load(at<kIsWhole>(i + kHeld), b);
                    exchange(a, b);
                    store(a, at<kIsWhole>(i)), store(b, at<kIsWhole>(i + kHeld));
                }
            }
        }
        for (int64_t from = first; from < stop; from += kHeld) merge_held<kIsWhole>(from);
    }

    // Whether all scores of the tile are finite.
    LAPSUM_MEMBER bool sort(const T* unsorted) {
        int64_t first = 0;
        for (; first + kHeld <= n; first += kHeld) sort_held<true>(unsorted, first);
        if (first < n) sort_held<false>(unsorted, first);
        for (int64_t run = kHeld; run < n; run *= 2) {
            for (first = 0; first + 2 * run <= n; first += 2 * run) merge<true>(first, run);
            if (first + run < n) merge<false>(first, run);
        }
        bool is_finite = true;
        for (int j = 0; j < kWidth; ++j) is_finite &= differences[j] == 0;
        return is_finite;
    }
};

template <class T, int kLanes, int kBytes>
LAPSUM_INLINE bool sort_body(const T* unsorted, int64_t n, T* sorted) {
    constexpr int kUsed = std::min<int>(kBytes, kLanes * sizeof(T)), kWidth = kUsed / sizeof(T);
    bool is_finite = true;
    for (int lane = 0; lane < kLanes; lane += kWidth)
        is_finite &= Network<T, kLanes, kUsed>(sorted + lane, n).sort(unsorted + lane);
    return is_finite;
}

// The instruction set is chosen here, not by LAPSUM_CLONES: the width of vectors depends on it.
#ifdef LAPSUM_HAS_CLONES
#define LAPSUM_NETWORK(T, kLanes)                                                              \
    __attribute__((target("arch=x86-64-v4"))) bool sort_v4(const T* unsorted, int64_t n,       \
                                                           T* sorted, Lanes<kLanes>) {         \
        return sort_body<T, kLanes, 64>(unsorted, n, sorted);                                  \
    }                                                                                          \
    __attribute__((target("arch=x86-64-v3"))) bool sort_v3(const T* unsorted, int64_t n,       \
                                                           T* sorted, Lanes<kLanes>) {         \
        return sort_body<T, kLanes, 32>(unsorted, n, sorted);                                  \
    }                                                                                          \
    bool sort_lanes(const T* unsorted, int64_t n, T* sorted, Lanes<kLanes> lanes) {            \
        static const bool has_v4 = __builtin_cpu_supports("x86-64-v4");                        \
        static const bool has_v3 = __builtin_cpu_supports("x86-64-v3");                        \
        if (has_v4) return sort_v4(unsorted, n, sorted, lanes);                                \
        if (has_v3) return sort_v3(unsorted, n, sorted, lanes);                                \
        return sort_body<T, kLanes, 16>(unsorted, n, sorted);                                  \
    }
#else
#if defined(__AVX512F__)
constexpr int kNetworkBytes = 64;
#elif defined(__AVX__)
constexpr int kNetworkBytes = 32;
#else
constexpr int kNetworkBytes = 16;
#endif
#define LAPSUM_NETWORK(T, kLanes)                                                              \
    bool sort_lanes(const T* unsorted, int64_t n, T* sorted, Lanes<kLanes>) {                  \
        return sort_body<T, kLanes, kNetworkBytes>(unsorted, n, sorted);                       \
    }
#endif

LAPSUM_NETWORK(float, 16)
LAPSUM_NETWORK(float, 4)
LAPSUM_NETWORK(double, 8)
LAPSUM_NETWORK(double, 2)

}  // namespace
