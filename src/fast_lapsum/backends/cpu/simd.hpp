// The inner loops, each over one contiguous chunk of scores. A NaN is on neither side of any
// comparison, so that counts which do not add up to the length tell of it.

#pragma once

#include "sums.hpp"

// One function body, compiled for several instruction sets, chosen when the library is loaded.
// A build with LAPSUM_NO_CLONES is what compilers without that make, for the tests.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(LAPSUM_NO_CLONES)
#define LAPSUM_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define LAPSUM_HAS_CLONES 1
#include <immintrin.h>
#else
#define LAPSUM_CLONES
#endif

namespace {

// Threshold and temperature of a row, in the units of decay(): v = |u| * log2(e).
template <class T>
struct Scale {
    T hi, lo, inverse, inverse_low;

    Scale(double hi_, double lo_, double t) : hi(T(hi_)), lo(T(lo_)) {
        const double exact = kLog2E / t;
        inverse = T(exact);
        inverse_low = sizeof(T) == 4 ? T(exact - double(inverse)) : T(0);
    }
};

// What fills up the last group of a piece: on neither side of any comparison, with a decay of 0.
template <class T>
constexpr T kFiller = std::numeric_limits<T>::quiet_NaN();

template <class T>
LAPSUM_INLINE Pass pass_body(const T* r, int64_t n, T b, T inverse) {
    constexpr int kLanes = Real<T>::lanes;
    constexpr T kEnd = std::numeric_limits<T>::infinity();
    alignas(64) int32_t above[kLanes] = {}, equal[kLanes] = {};
    alignas(64) T sum_above[kLanes] = {}, sum_below[kLanes] = {}, spread[kLanes] = {};
    alignas(64) T nearest_above[kLanes], nearest_below[kLanes];
    std::fill_n(nearest_above, kLanes, kEnd);
    std::fill_n(nearest_below, kLanes, -kEnd);
    Groups<T> groups(r, n, kFiller<T>);
    for (int64_t i = 0; i < groups.count; ++i) {
        const T* x = groups.next();
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const T v = clamp_decay(std::abs((x[j] - b) * inverse)), e = decay_clamped(v);
            const bool is_above = x[j] > b, is_below = x[j] < b;
            spread[j] += e * v;
            above[j] += is_above;
            equal[j] += x[j] == b;
            sum_above[j] += is_above ? e : T(0);
            sum_below[j] += is_below ? e : T(0);
            const T up = is_above ? x[j] : kEnd, down = is_below ? x[j] : -kEnd;
            nearest_above[j] = up < nearest_above[j] ? up : nearest_above[j];
            nearest_below[j] = down > nearest_below[j] ? down : nearest_below[j];
        }
    }
    return {count_of(above),         count_of(equal),
            sum_of(sum_above),       sum_of(sum_below),
            least_of(nearest_above), most_of(nearest_below),
            sum_of(spread)};
}

// Scores over `over` count as above, relative to anchor_above; those under `under` as below.
template <class T>
LAPSUM_INLINE Tails tails_body(const T* r, int64_t n, T under, T over, T anchor_below,
                               T anchor_above, T inverse) {
    constexpr int kLanes = Real<T>::lanes;
    alignas(64) int32_t above[kLanes] = {}, below[kLanes] = {};
    alignas(64) T sum_above[kLanes] = {}, sum_below[kLanes] = {}, spread[kLanes] = {};
    Groups<T> groups(r, n, kFiller<T>);
    for (int64_t i = 0; i < groups.count; ++i) {
        const T* x = groups.next();
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const bool is_above = x[j] > over, is_below = x[j] < under;
            const T d = is_above ? x[j] - anchor_above : anchor_below - x[j];
            const T v = clamp_decay(std::abs(d * inverse)), e = decay_clamped(v);
            spread[j] += e * v;  // what lies inside the band adds little
            above[j] += is_above;
            below[j] += is_below;
            sum_above[j] += is_above ? e : T(0);
            sum_below[j] += is_below ? e : T(0);
        }
    }
    return {count_of(above), count_of(below), sum_of(sum_above), sum_of(sum_below),
            sum_of(spread)};
}

// The scores in [lower, upper], in their order; `out` has room for n and one vector more.
template <class T>
LAPSUM_INLINE int64_t gather_body(const T* r, int64_t n, T lower, T upper, T* out) {
    constexpr int64_t kGroup = 32;
    int64_t found = 0;
    for (int64_t start = 0; start < n; start += kGroup) {
        const int64_t length = std::min(kGroup, n - start);
        const T* group = r + start;
        int32_t hits = 0;
#pragma omp simd reduction(+ : hits)
        for (int64_t i = 0; i < length; ++i) hits += (group[i] >= lower) & (group[i] <= upper);
        if (hits == 0) continue;
        for (int64_t i = 0; i < length; ++i) {
            out[found] = group[i];
            found += (group[i] >= lower) & (group[i] <= upper);
        }
    }
    return found;
}

#ifdef LAPSUM_HAS_CLONES
// The one loop that no compiler vectorises: AVX-512 moves the chosen lanes together itself.
__attribute__((target("avx512f,popcnt"))) int64_t gather_avx512(const float* r, int64_t n,
                                                                float lower, float upper,
                                                                float* out) {
    const __m512 low = _mm512_set1_ps(lower), high = _mm512_set1_ps(upper);
    int64_t found = 0;
    for (int64_t i = 0; i < n; i += 16) {  // without a branch: hits are too many to predict
        const auto lanes = __mmask16(n - i >= 16 ? 0xffff : (1 << (n - i)) - 1);
        const __m512 x = _mm512_maskz_loadu_ps(lanes, r + i);
        const __mmask16 above = _mm512_mask_cmp_ps_mask(lanes, x, low, _CMP_GE_OQ);
        const __mmask16 hits = _mm512_mask_cmp_ps_mask(above, x, high, _CMP_LE_OQ);
        _mm512_storeu_ps(out + found, _mm512_maskz_compress_ps(hits, x));
        found += __builtin_popcount(hits);
    }
    return found;
}

__attribute__((target("avx512f,popcnt"))) int64_t gather_avx512(const double* r, int64_t n,
                                                                double lower, double upper,
                                                                double* out) {
    const __m512d low = _mm512_set1_pd(lower), high = _mm512_set1_pd(upper);
    int64_t found = 0;
    for (int64_t i = 0; i < n; i += 8) {
        const auto lanes = __mmask8(n - i >= 8 ? 0xff : (1 << (n - i)) - 1);
        const __m512d x = _mm512_maskz_loadu_pd(lanes, r + i);
        const __mmask8 above = _mm512_mask_cmp_pd_mask(lanes, x, low, _CMP_GE_OQ);
        const __mmask8 hits = _mm512_mask_cmp_pd_mask(above, x, high, _CMP_LE_OQ);
        _mm512_storeu_pd(out + found, _mm512_maskz_compress_pd(hits, x));
        found += __builtin_popcount(hits);
    }
    return found;
}
#endif

template <class T>
LAPSUM_INLINE Survey survey_body(const T* r, int64_t n, T origin) {
    constexpr int kLanes = Real<T>::lanes;
    constexpr T kMax = std::numeric_limits<T>::max(), kEnd = std::numeric_limits<T>::infinity();
    alignas(64) int32_t excluded[kLanes] = {}, infinite[kLanes] = {}, finite[kLanes] = {};
    alignas(64) T sum[kLanes] = {}, squares[kLanes] = {}, lowest[kLanes], highest[kLanes];
    std::fill_n(lowest, kLanes, kEnd);
    std::fill_n(highest, kLanes, -kEnd);
    Groups<T> groups(r, n, kFiller<T>);
    for (int64_t i = 0; i < groups.count; ++i) {
        const T* x = groups.next();
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const bool is_finite = std::abs(x[j]) <= kMax;
            excluded[j] += x[j] < -kMax;
            infinite[j] += x[j] > kMax;
            finite[j] += is_finite;
            const T low = is_finite ? x[j] : kEnd, high = is_finite ? x[j] : -kEnd;
            const T d = is_finite ? x[j] - origin : T(0);
            sum[j] += d;
            squares[j] += d * d;
            lowest[j] = low < lowest[j] ? low : lowest[j];
            highest[j] = high > highest[j] ? high : highest[j];
        }
    }
    return {count_of(excluded), count_of(infinite), count_of(finite), least_of(lowest),
            most_of(highest),   sum_of(sum),        sum_of(squares)};
}

// Sum of p^2: with the sum of p it gives the spread of a sampled budget.
template <class T>
LAPSUM_INLINE double squares_body(const T* r, int64_t n, T b, T inverse) {
    constexpr int kLanes = Real<T>::lanes;
    alignas(64) T sum[kLanes] = {};
    Groups<T> groups(r, n, kFiller<T>);
    for (int64_t i = 0; i < groups.count; ++i) {
        const T* x = groups.next();
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const T half = T(0.5) * decay(std::abs((x[j] - b) * inverse));
            const T p = x[j] > b ? 1 - half : half;
            sum[j] += p * p;
        }
    }
    return sum_of(sum);
}

template <class T>
LAPSUM_INLINE void mask_body(const T* r, int64_t n, Scale<T> scale, T* out) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const T d = (r[i] - scale.hi) - scale.lo;
        const T half = T(0.5) * decay(std::abs(d * scale.inverse));
        out[i] = d > 0 ? 1 - half : half;
    }
}

// The same with the digits that r - hi, the product and 1 / t round away, so that p keeps its
// last digit however large |u| is. Only rows whose mass lies far from the threshold need it.
template <class T>
LAPSUM_INLINE void exact_mask_body(const T* r, int64_t n, Scale<T> scale, T* out) {
    // lo is half a unit of hi at most, and no score but hi is nearer than one: v is off by half.
    constexpr T kLimit = 2 * Real<T>::vanishing, kMax = std::numeric_limits<T>::max();
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const T d = r[i] - scale.hi, back = d - r[i];
        const T lost = (r[i] - (d - back)) - (scale.hi + back);
        const T v = d * scale.inverse;
        T low = fused(d, scale.inverse, -v);
        low = fused(d, scale.inverse_low, low);
        low = fused(lost - scale.lo, scale.inverse, low);
        // Farther out low is of no account; beside the largest number `back` overflows, and low is
        // NaN, but only where d is over 127 temperatures.
        const bool is_near = (std::abs(v) < kLimit) & (std::abs(low) <= kMax);
        const T sum = is_near ? v + low : v;
        low = is_near ? low - (sum - v) : T(0);
        const bool is_above = sum > 0;
        low = is_above ? low : -low;
        const T half = T(0.5) * decay_clamped(clamp_decay(std::abs(sum)), low);
        out[i] = is_above ? 1 - half : half;
    }
}

// Sums over e = 2^-|v|, with v = u log2(e).
template <class T>
LAPSUM_INLINE GradientSums gradient_sums_body(const T* r, const T* g, int64_t n, Scale<T> scale) {
    constexpr int kLanes = Real<T>::lanes;
    alignas(64) T e_sum[kLanes] = {}, ge_sum[kLanes] = {}, ue_sum[kLanes] = {};
    alignas(64) T gue_sum[kLanes] = {};
    Groups<T> groups(r, n, kFiller<T>), grads(g, n, T(0));
    for (int64_t i = 0; i < groups.count; ++i) {
        const T *x = groups.next(), *y = grads.next();
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const T v = ((x[j] - scale.hi) - scale.lo) * scale.inverse;
            const T e = decay(std::abs(v));
            const bool live = e > 0;  // what takes no part must not turn 0 * inf into NaN
            const T ge = live ? y[j] * e : T(0), v_live = live ? v : T(0);
            e_sum[j] += e;
            ge_sum[j] += ge;
            ue_sum[j] += v_live * e;
            gue_sum[j] += v_live * ge;
        }
    }
    return {sum_of(e_sum), sum_of(ge_sum), sum_of(ue_sum), sum_of(gue_sum)};
}

// phi / t * (g - <g, q>), with factor = 1 / (2 t).
template <class T>
LAPSUM_INLINE void gradient_body(const T* r, const T* g, int64_t n, Scale<T> scale, T factor,
                                 T mean, T* out) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const T e = decay(std::abs(((r[i] - scale.hi) - scale.lo) * scale.inverse));
        out[i] = e > 0 ? (factor * e) * (g[i] - mean) : T(0);
    }
}

#define LAPSUM_KERNELS(T)                                                                          \
    LAPSUM_CLONES Pass pass_chunk(const T* r, int64_t n, T b, T inverse) {                         \
        Pass sum;                                                                                  \
        for (int64_t at = 0; at < n; at += kPiece<T>)                                              \
            sum.add(pass_body(r + at, std::min(kPiece<T>, n - at), b, inverse));                   \
        return sum;                                                                                \
    }                                                                                              \
    LAPSUM_CLONES Tails tails_chunk(const T* r, int64_t n, T under, T over, T below, T above,      \
                                    T inverse) {                                                   \
        Tails sum;                                                                                 \
        for (int64_t at = 0; at < n; at += kPiece<T>) {                                            \
            const int64_t count = std::min(kPiece<T>, n - at);                                     \
            sum.add(tails_body(r + at, count, under, over, below, above, inverse));                \
        }                                                                                          \
        return sum;                                                                                \
    }                                                                                              \
    LAPSUM_CLONES int64_t gather_portable(const T* r, int64_t n, T lower, T upper, T* out) {       \
        return gather_body(r, n, lower, upper, out);                                               \
    }                                                                                              \
    LAPSUM_CLONES Survey survey_chunk(const T* r, int64_t n, T origin) {                           \
        Survey sum;                                                                                \
        for (int64_t at = 0; at < n; at += kPiece<T>)                                              \
            sum.add(survey_body(r + at, std::min(kPiece<T>, n - at), origin));                     \
        return sum;                                                                                \
    }                                                                                              \
    LAPSUM_CLONES double squares_chunk(const T* r, int64_t n, T b, T inverse) {                    \
        double sum = 0;                                                                            \
        for (int64_t at = 0; at < n; at += kPiece<T>)                                              \
            sum += squares_body(r + at, std::min(kPiece<T>, n - at), b, inverse);                  \
        return sum;                                                                                \
    }                                                                                              \
    LAPSUM_CLONES void mask_chunk(const T* r, int64_t n, Scale<T> s, T* out) {                     \
        mask_body(r, n, s, out);                                                                   \
    }                                                                                              \
    LAPSUM_CLONES void exact_mask_chunk(const T* r, int64_t n, Scale<T> s, T* out) {               \
        exact_mask_body(r, n, s, out);                                                             \
    }                                                                                              \
    LAPSUM_CLONES GradientSums gradient_sums_chunk(const T* r, const T* g, int64_t n,              \
                                                   Scale<T> s) {                                   \
        GradientSums sum;                                                                          \
        for (int64_t at = 0; at < n; at += kPiece<T>) {                                            \
            sum.add(gradient_sums_body(r + at, g + at, std::min(kPiece<T>, n - at), s));           \
        }                                                                                          \
        return sum;                                                                                \
    }                                                                                              \
    LAPSUM_CLONES void gradient_chunk(const T* r, const T* g, int64_t n, Scale<T> s, T factor,     \
                                      T mean, T* out) {                                            \
        gradient_body(r, g, n, s, factor, mean, out);                                              \
    }

LAPSUM_KERNELS(float)
LAPSUM_KERNELS(double)

// The side that is selected, and -inf for what a mask leaves out.
#define LAPSUM_READERS(T)                                                                      \
    LAPSUM_CLONES void turn(const T* r, int64_t n, T* out) {                                   \
        _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) out[i] = -r[i];                    \
    }                                                                                          \
    LAPSUM_CLONES void leave_out(const T* r, const uint8_t* keep, int64_t n, T sign, T* out) { \
        _Pragma("omp simd") for (int64_t i = 0; i < n; ++i) {                                  \
            out[i] = keep[i] ? sign * r[i] : -std::numeric_limits<T>::infinity();              \
        }                                                                                      \
    }

LAPSUM_READERS(float)
LAPSUM_READERS(double)

template <class T>
int64_t gather_chunk(const T* r, int64_t n, T lower, T upper, T* out) {
#ifdef LAPSUM_HAS_CLONES
    static const bool has_avx512 = __builtin_cpu_supports("x86-64-v4");
    if (has_avx512) return gather_avx512(r, n, lower, upper, out);
#endif
    return gather_portable(r, n, lower, upper, out);
}

LAPSUM_CLONES void widen_half(const uint16_t* in, int64_t n, float* out) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = half_to_float(in[i]);
}
LAPSUM_CLONES void widen_bfloat(const uint16_t* in, int64_t n, float* out) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = bfloat_to_float(in[i]);
}
LAPSUM_CLONES void narrow_half(const float* in, int64_t n, uint16_t* out) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = float_to_half(in[i]);
}
LAPSUM_CLONES void narrow_bfloat(const float* in, int64_t n, uint16_t* out) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = float_to_bfloat(in[i]);
}

}  // namespace
