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
struct Lanes {};

template <class T, int kLanes>
struct Network {
    typedef T Vector __attribute__((vector_size(kLanes * sizeof(T))));
    static constexpr int kHeld = 8;  // vectors that are sorted in registers

    T* tile;
    int64_t n;
    alignas(64) T nothing[kLanes];  // stands for places past the end; it never moves up
    Vector differences = {};        // of scores and themselves: NaN for what is not finite

    LAPSUM_MEMBER Network(T* tile_, int64_t n_) : tile(tile_), n(n_) {
        std::fill_n(nothing, kLanes, -std::numeric_limits<T>::infinity());
    }

    // Where score i is; only the last runs of a tile have places past the end.
    template <bool kIsWhole>
    LAPSUM_MEMBER T* at(int64_t i) {
        return kIsWhole || i < n ? tile + i * kLanes : nothing;
    }

    static LAPSUM_MEMBER void load(const T* from, Vector& out) {
        std::memcpy(&out, from, sizeof out);
    }

    static LAPSUM_MEMBER void store(const Vector& value, T* to) {
        std::memcpy(to, &value, sizeof value);
    }

    // The larger score of each lane to a, the smaller to b.
    static LAPSUM_MEMBER void exchange(Vector& a, Vector& b) {
        const Vector x = a, y = b;
        a = x > y ? x : y;
        b = x > y ? y : x;
    }

    // Eight vectors through `steps(a, ..., h)` in registers.
    template <bool kIsWhole, class Steps>
    LAPSUM_MEMBER void hold(int64_t first, Steps steps) {
        hold<kIsWhole>(tile, first, steps);
    }

    template <bool kIsWhole, class Steps>
    LAPSUM_MEMBER void hold(const T* unsorted, int64_t first, Steps steps) {
        Vector held[kHeld];
        const T* from[kHeld];
        T* to[kHeld];
        for (int i = 0; i < kHeld; ++i) {
            to[i] = at<kIsWhole>(first + i);
            from[i] = kIsWhole ? unsorted + (first + i) * kLanes : to[i];
        }
        for (int i = 0; i < kHeld; ++i) load(from[i], held[i]);
        steps(held[0], held[1], held[2], held[3], held[4], held[5], held[6], held[7]);
        for (int i = 0; i < kHeld; ++i) store(held[i], to[i]);
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
        for (int j = 0; j < kLanes; ++j) is_finite &= differences[j] == 0;
        return is_finite;
    }
};

#define LAPSUM_NETWORK(T, kLanes)                                                              \
    LAPSUM_CLONES bool sort_lanes(const T* unsorted, int64_t n, T* sorted, Lanes<kLanes>) {    \
        return Network<T, kLanes>(sorted, n).sort(unsorted);                                   \
    }

LAPSUM_NETWORK(float, 16)
LAPSUM_NETWORK(float, 4)
LAPSUM_NETWORK(double, 8)
LAPSUM_NETWORK(double, 2)

}  // namespace
