// The inner loops, each over one contiguous chunk of scores. Sums are float over a piece of the
// chunk and double from there on. A NaN is on neither side of any comparison, so that counts which
// do not add up to the length tell of it.

#pragma once

#include <algorithm>

#include "numbers.hpp"

// One function body, compiled for several instruction sets, chosen when the library is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define LAPSUM_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#define LAPSUM_HAS_CLONES 1
#include <immintrin.h>
#else
#define LAPSUM_CLONES
#endif

namespace {

// What one pass at a trial threshold tells (operator: N>, E, S<, S>, m<, m>).
struct Pass {
    int64_t above = 0, at = 0;
    double sum_above = 0, sum_below = 0;
    double nearest_above = kInfinity, nearest_below = -kInfinity;
    double spread = 0;  // sum of e |v|, v = u log2(e): how far away the mass lies

    void add(const Pass& o) {
        spread += o.spread;
        above += o.above;
        at += o.at;
        sum_above += o.sum_above;
        sum_below += o.sum_below;
        nearest_above = std::min(nearest_above, o.nearest_above);
        nearest_below = std::max(nearest_below, o.nearest_below);
    }
};

// Tail sums outside a band, each relative to its own anchor.
struct Tails {
    int64_t above = 0, below = 0;
    double sum_above = 0, sum_below = 0;
    double spread = 0;  // sum of e v over both

    void add(const Tails& o) {
        spread += o.spread;
        above += o.above;
        below += o.below;
        sum_above += o.sum_above;
        sum_below += o.sum_below;
    }
};

struct Survey {
    int64_t excluded = 0, infinite = 0, finite = 0;
    double lowest = kInfinity, highest = -kInfinity;
    double sum = 0, squares = 0;  // of finite r - origin

    void add(const Survey& o) {
        sum += o.sum;
        squares += o.squares;
        excluded += o.excluded;
        infinite += o.infinite;
        finite += o.finite;
        lowest = std::min(lowest, o.lowest);
        highest = std::max(highest, o.highest);
    }
};

struct GradientSums {
    double e = 0, ge = 0, ue = 0, gue = 0;

    void add(const GradientSums& o) {
        e += o.e;
        ge += o.ge;
        ue += o.ue;
        gue += o.gue;
    }
};

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

template <class T>
LAPSUM_INLINE Pass pass_body(const T* r, int64_t n, T b, T inverse) {
    int32_t above = 0, at = 0;
    T sum_above = 0, sum_below = 0, spread = 0;
    T nearest_above = std::numeric_limits<T>::infinity(), nearest_below = -nearest_above;
#pragma omp simd reduction(+ : above, at, sum_above, sum_below, spread) \
    reduction(min : nearest_above) reduction(max : nearest_below)
    for (int64_t i = 0; i < n; ++i) {
        const T v = clamp_decay(std::abs((r[i] - b) * inverse)), e = decay_clamped(v);
        const bool is_above = r[i] > b, is_below = r[i] < b;
        spread += e * v;
        above += is_above;
        at += r[i] == b;
        sum_above += is_above ? e : T(0);
        sum_below += is_below ? e : T(0);
        const T up = is_above ? r[i] : std::numeric_limits<T>::infinity();
        const T down = is_below ? r[i] : -std::numeric_limits<T>::infinity();
        nearest_above = up < nearest_above ? up : nearest_above;
        nearest_below = down > nearest_below ? down : nearest_below;
    }
    return {above,
            at,
            double(sum_above),
            double(sum_below),
            double(nearest_above),
            double(nearest_below),
            double(spread)};
}

// Scores over `over` count as above, relative to anchor_above; those under `under` as below.
template <class T>
LAPSUM_INLINE Tails tails_body(const T* r, int64_t n, T under, T over, T anchor_below,
                               T anchor_above, T inverse) {
    int32_t above = 0, below = 0;
    T sum_above = 0, sum_below = 0, spread = 0;
#pragma omp simd reduction(+ : above, below, sum_above, sum_below, spread)
    for (int64_t i = 0; i < n; ++i) {
        const bool is_above = r[i] > over, is_below = r[i] < under;
        const T d = is_above ? r[i] - anchor_above : anchor_below - r[i];
        const T v = clamp_decay(std::abs(d * inverse)), e = decay_clamped(v);
        spread += e * v;  // what lies inside the band adds little
        above += is_above;
        below += is_below;
        sum_above += is_above ? e : T(0);
        sum_below += is_below ? e : T(0);
    }
    return {above, below, double(sum_above), double(sum_below), double(spread)};
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
    constexpr T kMax = std::numeric_limits<T>::max();
    int32_t excluded = 0, infinite = 0, finite = 0;
    T lowest = std::numeric_limits<T>::infinity(), highest = -lowest, sum = 0, squares = 0;
#pragma omp simd reduction(+ : excluded, infinite, finite, sum, squares) reduction(min : lowest) \
    reduction(max : highest)
    for (int64_t i = 0; i < n; ++i) {
        const bool is_finite = std::abs(r[i]) <= kMax;
        excluded += r[i] < -kMax;
        infinite += r[i] > kMax;
        finite += is_finite;
        const T low = is_finite ? r[i] : std::numeric_limits<T>::infinity();
        const T high = is_finite ? r[i] : -std::numeric_limits<T>::infinity();
        const T d = is_finite ? r[i] - origin : T(0);
        sum += d;
        squares += d * d;
        lowest = low < lowest ? low : lowest;
        highest = high > highest ? high : highest;
    }
    return {excluded,        infinite,    finite,         double(lowest),
            double(highest), double(sum), double(squares)};
}

// Sum of p^2: with the sum of p it gives the spread of a sampled budget.
template <class T>
LAPSUM_INLINE double squares_body(const T* r, int64_t n, T b, T inverse) {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i) {
        const T half = T(0.5) * decay(std::abs((r[i] - b) * inverse));
        const T p = r[i] > b ? 1 - half : half;
        sum += p * p;
    }
    return double(sum);
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
    constexpr T kLimit = 2 * Real<T>::vanishing;
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const T d = r[i] - scale.hi, back = d - r[i];
        const T lost = (r[i] - (d - back)) - (scale.hi + back);
        const T v = d * scale.inverse;
        T low = fused(d, scale.inverse, -v);
        low = fused(d, scale.inverse_low, low);
        low = fused(lost - scale.lo, scale.inverse, low);
        const bool is_near = std::abs(v) < kLimit;  // farther out low is NaN or of no account
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
    T e_sum = 0, ge_sum = 0, ue_sum = 0, gue_sum = 0;
#pragma omp simd reduction(+ : e_sum, ge_sum, ue_sum, gue_sum)
    for (int64_t i = 0; i < n; ++i) {
        const T v = ((r[i] - scale.hi) - scale.lo) * scale.inverse;
        const T e = decay(std::abs(v));
        const bool live = e > 0;  // what takes no part must not turn 0 * inf into NaN
        const T ge = live ? g[i] * e : T(0), v_live = live ? v : T(0);
        e_sum += e;
        ge_sum += ge;
        ue_sum += v_live * e;
        gue_sum += v_live * ge;
    }
    return {double(e_sum), double(ge_sum), double(ue_sum), double(gue_sum)};
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

// Float sums run over this many scores before they go into doubles: longer ones would show the
// rounding of many equal addends, which do not average out.
constexpr int64_t kPiece = 512;

#define LAPSUM_KERNELS(T)                                                                          \
    LAPSUM_CLONES Pass pass_chunk(const T* r, int64_t n, T b, T inverse) {                         \
        Pass sum;                                                                                  \
        for (int64_t at = 0; at < n; at += kPiece)                                                 \
            sum.add(pass_body(r + at, std::min(kPiece, n - at), b, inverse));                      \
        return sum;                                                                                \
    }                                                                                              \
    LAPSUM_CLONES Tails tails_chunk(const T* r, int64_t n, T under, T over, T below, T above,      \
                                    T inverse) {                                                   \
        Tails sum;                                                                                 \
        for (int64_t at = 0; at < n; at += kPiece) {                                               \
            sum.add(                                                                               \
                tails_body(r + at, std::min(kPiece, n - at), under, over, below, above, inverse)); \
        }                                                                                          \
        return sum;                                                                                \
    }                                                                                              \
    LAPSUM_CLONES int64_t gather_portable(const T* r, int64_t n, T lower, T upper, T* out) {       \
        return gather_body(r, n, lower, upper, out);                                               \
    }                                                                                              \
    LAPSUM_CLONES Survey survey_chunk(const T* r, int64_t n, T origin) {                           \
        return survey_body(r, n, origin);                                                          \
    }                                                                                              \
    LAPSUM_CLONES double squares_chunk(const T* r, int64_t n, T b, T inverse) {                    \
        return squares_body(r, n, b, inverse);                                                     \
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
        for (int64_t at = 0; at < n; at += kPiece) {                                               \
            sum.add(gradient_sums_body(r + at, g + at, std::min(kPiece, n - at), s));              \
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
