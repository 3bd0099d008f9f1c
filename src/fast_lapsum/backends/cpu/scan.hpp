// Scans over a sorted row: sums that decay from score to score. Ranks, masses, thresholds and their
// gradients are made of them.
//
// With s_0 <= s_1 <= ... the decay between neighbours is e^{-(s_{i+1} - s_i)/t}, exactly 1 between
// equal scores. Decays and sums are doubles for rows of floats, too: a scan is as long as the row, and
// the rounding of decays near 1 adds up. Each sum is taken in one order, whatever the threads.

#pragma once

#include "simd.hpp"

namespace {

constexpr int64_t kDecays = 1024;  // at a time, on the stack

// Twice log2(e) / t: distances are taken by halves. Infinite in the hard limit.
template <class T>
double decay_scale(double t) {
    constexpr double kTiny = std::numeric_limits<T>::min();
    return t < kTiny ? kInfinity : 2 * kLog2E / t;
}

template <class T>
LAPSUM_INLINE void decays_body(const T* s, int64_t gaps, double scale, double* out) {
#pragma omp simd
    for (int64_t i = 0; i < gaps; ++i) {
        const double low = double(s[i]), high = double(s[i + 1]);
        const double e = decay((high * 0.5 - low * 0.5) * scale);
        out[i] = low == high ? 1.0 : e;
    }
}

// The same for gaps that are given in temperatures.
template <class T>
LAPSUM_INLINE void given_decays_body(const T* gaps, int64_t count, double* out) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) out[i] = decay(double(gaps[i]) * kLog2E);
}

#define LAPSUM_DECAYS(T)                                                                           \
    LAPSUM_CLONES void decays_chunk(const T* s, int64_t gaps, double scale, double* out) {         \
        decays_body(s, gaps, scale, out);                                                          \
    }                                                                                              \
    LAPSUM_CLONES void given_decays_chunk(const T* gaps, int64_t count, double* out) {             \
        given_decays_body(gaps, count, out);                                                       \
    }

LAPSUM_DECAYS(float)
LAPSUM_DECAYS(double)

// step(i, decay from i - 1 to i) for i = 1, ..., n - 1.
template <class T, class Step>
LAPSUM_INLINE void scan_up(const T* s, int64_t n, double scale, Step step) {
    double e[kDecays];
    for (int64_t at = 0; at < n - 1; at += kDecays) {
        const int64_t count = std::min(kDecays, n - 1 - at);
        decays_chunk(s + at, count, scale, e);
        for (int64_t i = 0; i < count; ++i) step(at + i + 1, e[i]);
    }
}

// step(i, decay from i + 1 to i) for i = n - 2, ..., 0.
template <class T, class Step>
LAPSUM_INLINE void scan_down(const T* s, int64_t n, double scale, Step step) {
    double e[kDecays];
    for (int64_t end = n - 1; end > 0; end -= kDecays) {
        const int64_t at = std::max<int64_t>(0, end - kDecays);
        decays_chunk(s + at, end - at, scale, e);
        for (int64_t i = end - at - 1; i >= 0; --i) step(at + i, e[i]);
    }
}

// Sums over the scores strictly below each score: tied scores have the same, to the last bit.
template <class T>
void sums_below(const T* s, int64_t n, double scale, double* out) {
    double sum = 0, tied = 1;
    out[0] = 0;
    scan_up(s, n, scale, [&](int64_t i, double e) {
        if (s[i] == s[i - 1]) {
            tied += 1;
        } else {
            sum = e * (sum + tied);
            tied = 1;
        }
        out[i] = sum;
    });
}

// group(first, end, sum over the scores strictly above) for all groups of tied scores, from the
// highest on down, and cross(first, decay) where the scan goes on from such a group to the next.
template <class T, class Group, class Cross>
LAPSUM_INLINE void each_group_down(const T* s, int64_t n, double scale, Group group, Cross cross) {
    double above = 0;
    int64_t end = n;
    scan_down(s, n, scale, [&](int64_t i, double e) {
        if (s[i] == s[i + 1]) return;
        group(i + 1, end, above);
        cross(i + 1, e);
        above = e * (above + double(end - i - 1));
        end = i + 1;
    });
    group(0, end, above);
}

// out_i = values_i + e^{-gap} out before it, upward or downward.
template <class T>
void decayed_sums(const T* gaps, const T* values, int64_t n, bool downward, T* out) {
    double e[kDecays], sum = double(values[downward ? n - 1 : 0]);
    out[downward ? n - 1 : 0] = T(sum);
    for (int64_t done = 0; done < n - 1; done += kDecays) {
        const int64_t count = std::min(kDecays, n - 1 - done);
        const int64_t at = downward ? n - 1 - done - count : done;
        given_decays_chunk(gaps + at, count, e);
        for (int64_t i = 0; i < count; ++i) {
            const int64_t gap = downward ? count - 1 - i : i, to = at + gap + !downward;
            sum = fused(e[gap], sum, double(values[to]));
            out[to] = T(sum);
        }
    }
}

}  // namespace
