// Systematic sampling: exactly k scores of a row, each with probability p. With the running sum C
// of p and one uniform number u per row, score i is taken where C passes u, u + 1, ... or u + k - 1.
//
// That k are taken is not left to rounding. The m = k scores to take, or the m = n - k to leave
// where that is less, are drawn by whole numbers W = p 2^F or (1 - p) 2^F:
//
//   - a W of 2^F is certain and a W of 0 impossible; neither takes part in what follows;
//   - the others, with sum S, are drawn by m ticks at (j + u) S / m, in whole numbers. Ticks are at
//     least 2^F apart if S >= m 2^F, so no score holds two, and all are below S, so each is held.
//
// For S >= m 2^F the masses are taken at a threshold that is a millionth of t off, on the side that
// makes them larger; S / m evens that out. Complements agree: counting off what is left at 1 - u
// leaves the scores that counting off what is taken at u does not take.

#pragma once

#include "select.hpp"

namespace {

// Whole weights of one row and how they come about.
template <class T>
struct Drawing {
    Scale<T> scale;
    bool is_hard;      // tied scores have half the weight of those above, which are certain
    bool complements;  // W stands for what is not taken
    int64_t whole;     // the weight of what is certain
    int digits;        // ticks must be 2^digits apart
    double grown, shrunk;

    Drawing(const Threshold& threshold, double t, int64_t n, int64_t k, double tilt)
        : scale(threshold.hi, threshold.lo, t), is_hard(threshold.is_hard) {
        complements = k > n - k && !is_hard;
        const int64_t most = is_hard ? n : std::min(k, n - k);
        int bits = 0;
        while ((most >> bits) > 0) ++bits;
        digits = std::min(51, 61 - bits);  // sums stay under 2^63
        whole = int64_t(1) << (is_hard ? digits + 1 : digits);
        const auto unit = double(int64_t(1) << digits);
        grown = (1 + tilt) * unit;
        shrunk = (1 - tilt) * unit;
    }
};

// A double under 2^52 to the nearest whole number, in a way that vectorises.
LAPSUM_INLINE int64_t rounded(double value) {
    constexpr double kMagic = 0x1p52;
    return bits_as<int64_t>(value + kMagic) - bits_as<int64_t>(kMagic);
}

template <class T>
LAPSUM_INLINE void weights_body(const T* r, int64_t n, const Drawing<T>& drawing, int64_t* out) {
    const Scale<T> scale = drawing.scale;
    const bool complements = drawing.complements;
    const int64_t whole = drawing.whole;
    const double grown = drawing.grown, shrunk = drawing.shrunk;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const T d = (r[i] - scale.hi) - scale.lo;
        const double half = double(T(0.5) * decay(std::abs(d * scale.inverse)));
        const bool is_small = (d > 0) == complements;  // which of half and 1 - half is the weight
        const int64_t part = rounded(half * (is_small ? grown : shrunk));
        out[i] = is_small ? part : whole - part;
    }
}

// What a row's weights come to.
struct WeightSums {
    int64_t open = 0, certain = 0;  // the sum of open weights, the number of certain ones

    void add(const WeightSums& o) {
        open += o.open;
        certain += o.certain;
    }
};

LAPSUM_INLINE WeightSums weight_sums_body(const int64_t* weights, int64_t n, int64_t whole) {
    int64_t sum = 0, certain = 0;
#pragma omp simd reduction(+ : sum, certain)
    for (int64_t i = 0; i < n; ++i) {
        sum += weights[i];
        certain += weights[i] == whole;
    }
    return {sum - certain * whole, certain};
}

#define LAPSUM_DRAWINGS(T)                                                              \
    LAPSUM_CLONES void soft_weights_chunk(const T* r, int64_t n, const Drawing<T>& drawing, \
                                          int64_t* out) {                               \
        weights_body(r, n, drawing, out);                                               \
    }
LAPSUM_DRAWINGS(float)
LAPSUM_DRAWINGS(double)

LAPSUM_CLONES WeightSums weight_sums_chunk(const int64_t* weights, int64_t n, int64_t whole) {
    return weight_sums_body(weights, n, whole);
}

template <class T>
void weights_chunk(const T* r, int64_t n, const Drawing<T>& drawing, int64_t* out) {
    if (!drawing.is_hard) return soft_weights_chunk(r, n, drawing, out);
    const T boundary = drawing.scale.hi;
    const int64_t above = drawing.whole, tied = drawing.whole / 2;
    for (int64_t i = 0; i < n; ++i) out[i] = r[i] > boundary ? above : r[i] == boundary ? tied : 0;
}

// m ticks in [0, sum), floor(sum / m) apart or one more: first + j q + floor(j rest / m).
struct Ticks {
    int64_t m, sum, quotient, rest, first;

    Ticks(int64_t m_, int64_t sum_, double u) : m(m_), sum(sum_) {
        quotient = m > 0 ? sum / m : 0;
        rest = m > 0 ? sum % m : 0;
        first = std::min(int64_t(u * double(quotient)), quotient - 1);
    }

    int64_t at(int64_t j) const { return first + j * quotient + j * rest / m; }

    // How many are below a sum.
    int64_t below(int64_t reached) const {
        auto j = int64_t(double(reached) / double(sum) * double(m));
        j = std::max<int64_t>(0, std::min(j, m));
        while (j > 0 && at(j - 1) >= reached) --j;
        while (j < m && at(j) < reached) ++j;
        return j;
    }
};

// Where the next tick is while open weights are added up; the one after the last is beyond the sum.
struct NextTick {
    int64_t ahead;  // its distance from the sum so far
    int64_t part;   // j rest mod m: when it is full, the next is one farther

    static NextTick after(const Ticks& ticks, int64_t reached) {
        if (ticks.m == 0) return {std::numeric_limits<int64_t>::max(), 0};
        if (reached == 0) return {ticks.first, 0};
        const int64_t j = ticks.below(reached);
        return {ticks.at(j) - reached, j * ticks.rest % ticks.m};
    }
};

// Whether there are scores for all ticks, each at most one.
template <class T>
bool can_be_drawn(const Drawing<T>& drawing, const WeightSums& sums, int64_t m) {
    const int64_t ticks = m - sums.certain;
    return ticks >= 0 && sums.open >= ticks << drawing.digits;
}

// Writes the scores of a chunk that are taken, and moves on.
template <class T>
LAPSUM_INLINE void draw_body(const int64_t* weights, int64_t n, const Drawing<T>& drawing,
                             const Ticks& ticks, NextTick* next, T* out) {
    constexpr int64_t kGroup = 16, kMost = std::numeric_limits<int64_t>::max();
    const int complements = drawing.complements;
    const int64_t whole = drawing.whole;
    int64_t ahead = next->ahead, part = next->part;
    for (int64_t start = 0; start < n; start += kGroup) {
        const int64_t length = std::min(kGroup, n - start);
        const int64_t* w = weights + start;
        T* to = out + start;
        int64_t sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < length; ++i) sum += w[i];
        if (sum < whole && sum <= ahead) {  // no tick, and nothing is certain
            ahead -= sum;
            std::fill(to, to + length, T(complements));
            continue;
        }
        alignas(64) int64_t reached[kGroup];
        sum = 0;
        for (int64_t i = 0; i < length; ++i) {
            sum += w[i] & (whole - 1);  // what is certain has no part
            reached[i] = sum;
            to[i] = T(int(w[i] == whole) ^ complements);
        }
        std::fill(reached + length, reached + kGroup, kMost);
        while (ahead < sum) {
            int64_t place = 0;
#pragma omp simd reduction(+ : place)
            for (int64_t i = 0; i < kGroup; ++i) place += reached[i] <= ahead;
            to[place] = T(1 ^ complements);
            const bool is_full = part >= ticks.m - ticks.rest;
            ahead += ticks.quotient + is_full;
            part += is_full ? ticks.rest - ticks.m : ticks.rest;
        }
        ahead -= sum;
    }
    *next = {ahead, part};
}

#define LAPSUM_DRAWS(T)                                                                         \
    LAPSUM_CLONES void draw_chunk(const int64_t* weights, int64_t n, const Drawing<T>& drawing, \
                                  const Ticks& ticks, NextTick* next, T* out) {                 \
        draw_body(weights, n, drawing, ticks, next, out);                                       \
    }
LAPSUM_DRAWS(float)
LAPSUM_DRAWS(double)

// A mask of exactly k ones, drawn by the row's uniform number; NaN in a row without an answer.
template <class T>
void write_sample(Row<T>& row, const Places& places, const Threshold& threshold, double k,
                  double t, double u, const Strided& out) {
    if (std::isnan(threshold.hi)) return fill(row, out, std::numeric_limits<T>::quiet_NaN());
    // What the sum of p is off by is a few units in its last place; more costs another reading.
    double tilt = sizeof(T) == 4 ? 0x1p-20 : 0x1p-44;
    for (; tilt < 1; tilt *= 8) {
        const Drawing<T> drawing(threshold, t, row.n, int64_t(k), tilt);
        const int64_t m = drawing.complements ? row.n - int64_t(k) : int64_t(k);
        ++row.passes;
        const int64_t size = row.block_size(), blocks = (row.n + size - 1) / size;
        alignas(64) int64_t kept[kChunk];  // the weights of a short row
        WeightSums total;
        std::vector<WeightSums> sums(blocks > 1 ? size_t(blocks) : 0);  // then, of those before
        row.each_block([&](int64_t block, int64_t first, int64_t count) {
            alignas(64) T buffer[kChunk];
            alignas(64) int64_t own[kChunk];
            int64_t* weights = row.n <= kChunk ? kept : own;
            WeightSums& sum = blocks > 1 ? sums[size_t(block)] : total;
            for (int64_t at = 0; at < count; at += kChunk) {
                const int64_t length = std::min(kChunk, count - at);
                weights_chunk(row.read(first + at, length, buffer), length, drawing, weights);
                sum.add(weight_sums_chunk(weights, length, drawing.whole));
            }
        });
        for (WeightSums& sum : sums) {
            const WeightSums before = total;
            total.add(sum);
            sum = before;
        }
        if (!can_be_drawn(drawing, total, m)) continue;
        const Ticks ticks(m - total.certain, total.open, drawing.complements ? 1 - u : u);
        row.each_block([&](int64_t block, int64_t first, int64_t count) {
            alignas(64) T buffer[kChunk];
            alignas(64) T values[kChunk];
            alignas(64) int64_t own[kChunk];
            NextTick next = NextTick::after(ticks, blocks > 1 ? sums[size_t(block)].open : 0);
            for (int64_t at = first; at < first + count; at += kChunk) {
                const int64_t length = std::min(kChunk, first + count - at);
                if (row.n > kChunk)
                    weights_chunk(row.read(at, length, buffer), length, drawing, own);
                T* target = write_target(out, at, values);
                draw_chunk(row.n <= kChunk ? kept : own, length, drawing, ticks, &next, target);
                write_chunk(out, at, length, target);
            }
        });
        return;
    }
    // No masses add up to k: the largest scores are better than a wrong number of them.
    Boundary boundary;
    if (k > 0) select_rank(row, places, int64_t(k), &boundary);
    write_hard_mask(row, boundary, k, out);
}

}  // namespace
