// log p and its gradients. Neither needs p, which may have underflowed:
//
//   log p = u - log 2 (u <= 0),  log(1 - e^-u / 2) (u > 0)
//   d log p = phi / p times what db and dr are made of, where phi / p is 1 for u <= 0
//
// With w = g phi / p the gradient for scores is (w - q sum(w)) / t.

#pragma once

#include "solve.hpp"
#include "write.hpp"

namespace {

// Threshold and temperature of a row by halves: u must be right where r - b overflows.
template <class T>
struct LogScale {
    T half_hi, half_lo, per_u, per_v, farthest;

    LogScale(double hi, double lo, double t)
        : half_hi(T(hi / 2)), half_lo(T(lo / 2)), per_u(T(2 / t)), per_v(T(2 * kLog2E / t)) {
        constexpr T kMax = std::numeric_limits<T>::max();
        farthest = sizeof(T) == 8 && t < 2 ? T(kMax / 2 * t) : kMax;
    }

    LAPSUM_MEMBER T half_distance(T x) const { return fused(T(0.5), x, -half_hi) - half_lo; }

    // A score at an infinite u takes no part; no float is at one, seen as a double.
    LAPSUM_MEMBER bool is_live(T half_distance) const {
        return std::abs(half_distance) <= farthest;
    }
};

// log(1 - e / 2) for 0 <= e <= 1, to the last digits of e: -e / 2 - e^2 times a minimax polynomial
// (2e-8), without a division; in double -2 atanh(e / (4 - e)), which needs fewer terms (4e-21).
LAPSUM_INLINE float log_of_rest(float e) {
    float p = 1.268485019e-3f;
    p = fused(p, e, -2.958267151e-3f);
    p = fused(p, e, 4.334827933e-3f);
    p = fused(p, e, -1.407591754e-3f);
    p = fused(p, e, 3.540053237e-3f);
    p = fused(p, e, 6.059650760e-3f);
    p = fused(p, e, 1.564406858e-2f);
    p = fused(p, e, 4.166594099e-2f);
    p = fused(p, e, 1.250000045e-1f);
    return -e * fused(p, e, 0.5f);  // e * e would underflow, which takes long
}

LAPSUM_INLINE double log_of_rest(double e) {
    const double s = e / (4 - e), z = s * s;
    double p = 0.076156313097144924193;
    p = fused(p, z, 0.03167055425885122698);
    p = fused(p, z, 0.049710124482773673141);
    p = fused(p, z, 0.052401996171826370258);
    p = fused(p, z, 0.058839988836205180801);
    p = fused(p, z, 0.066665884745690892251);
    p = fused(p, z, 0.076923101269020811996);
    p = fused(p, z, 0.090909090430028277259);
    p = fused(p, z, 0.11111111111665993422);
    p = fused(p, z, 0.14285714285710971648);
    p = fused(p, z, 0.20000000000000007739);
    p = fused(p, z, 0.3333333333333333333);
    return -2 * s * fused(p, z, 1.0);
}

// Scores that are +inf are counted: whoever wrote them needs to know.
struct Count {
    int64_t count = 0;
    void add(const Count& o) { count += o.count; }
};

template <class T>
LAPSUM_INLINE int64_t log_mask_body(const T* r, int64_t n, LogScale<T> scale, T* out) {
    constexpr T kMax = std::numeric_limits<T>::max();
    int32_t infinite = 0;
#pragma omp simd reduction(+ : infinite)
    for (int64_t i = 0; i < n; ++i) {
        const T half_distance = scale.half_distance(r[i]);
        const T above = log_of_rest(decay(std::abs(half_distance * scale.per_v)));
        const T below = fused(half_distance, scale.per_u, T(-kLn2));
        infinite += r[i] > kMax;
        out[i] = half_distance > 0 ? above : below;
    }
    return infinite;
}

// Sums over e = 2^-|v| and w, with v = u log2(e), and over g apart for the scores below b (as g)
// and above it (as g e / p).
struct LogGradientSums {
    double e = 0, w = 0, ve = 0, vw = 0, g_below = 0, ge_above = 0;

    void add(const LogGradientSums& o) {
        e += o.e;
        w += o.w;
        ve += o.ve;
        vw += o.vw;
        g_below += o.g_below;
        ge_above += o.ge_above;
    }
};

template <class T>
LAPSUM_INLINE LogGradientSums log_gradient_sums_body(const T* r, const T* g, int64_t n,
                                                     LogScale<T> scale) {
    constexpr int kLanes = Real<T>::lanes;
    alignas(64) T e_sum[kLanes] = {}, w_sum[kLanes] = {}, ve_sum[kLanes] = {}, vw_sum[kLanes] = {};
    alignas(64) T g_below[kLanes] = {}, ge_above[kLanes] = {};
    Groups<T> groups(r, n, kFiller<T>), grads(g, n, T(0));
    for (int64_t i = 0; i < groups.count; ++i) {
        const T *x = groups.next(), *y = grads.next();
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const T r_j = x[j], g_j = y[j];
            const T half_distance = scale.half_distance(r_j), v = half_distance * scale.per_v;
            const T e = decay(std::abs(v));
            const T grad = scale.is_live(half_distance) ? g_j : T(0);
            const T up = half_distance > 0 ? grad : T(0), down = grad - up;
            const T ge = up * (e / (1 - T(0.5) * e)), w = T(0.5) * ge + down;
            const T v_near = e > 0 ? v : T(0), v_weighted = w != 0 ? v : T(0);
            e_sum[j] += e;
            w_sum[j] += w;
            ve_sum[j] += v_near * e;
            vw_sum[j] += v_weighted * w;
            g_below[j] += down;
            ge_above[j] += ge;
        }
    }
    return {sum_of(e_sum),  sum_of(w_sum),   sum_of(ve_sum),
            sum_of(vw_sum), sum_of(g_below), sum_of(ge_above)};
}

// (w - q sum(w)) / t, with factor = 1 / t and q sum(w) = e * mean.
template <class T>
LAPSUM_INLINE void log_gradient_body(const T* r, const T* g, int64_t n, LogScale<T> scale,
                                     T factor, T mean, T* out) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const T half_distance = scale.half_distance(r[i]), v = half_distance * scale.per_v;
        const T e = decay(std::abs(v)), half = T(0.5) * e;
        const T w = g[i] * (half_distance > 0 ? half / (1 - half) : T(1));
        out[i] = scale.is_live(half_distance) ? factor * (w - e * mean) : T(0);
    }
}

// The same where q is told by the nearest scores of either side.
template <class T>
LAPSUM_INLINE void far_log_gradient_body(const T* r, const T* g, int64_t n, LogScale<T> scale,
                                         FarScale<T> far, T factor, T total, T* out) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const T half_distance = scale.half_distance(r[i]), v = half_distance * scale.per_v;
        const T half = T(0.5) * decay(std::abs(v));
        const bool is_above = half_distance > 0;
        const T w = g[i] * (is_above ? half / (1 - half) : T(1));
        const T q = far.share(r[i], is_above, T(0.5) * scale.per_v);
        out[i] = scale.is_live(half_distance) ? factor * (w - q * total) : T(0);
    }
}

#define LAPSUM_LOGARITHMS(T)                                                                     \
    LAPSUM_CLONES int64_t log_mask_chunk(const T* r, int64_t n, LogScale<T> s, T* out) {         \
        return log_mask_body(r, n, s, out);                                                      \
    }                                                                                            \
    LAPSUM_CLONES LogGradientSums log_gradient_sums_chunk(const T* r, const T* g, int64_t n,     \
                                                          LogScale<T> s) {                       \
        LogGradientSums sum;                                                                     \
        for (int64_t at = 0; at < n; at += kPiece<T>)                                            \
            sum.add(log_gradient_sums_body(r + at, g + at, std::min(kPiece<T>, n - at), s));     \
        return sum;                                                                              \
    }                                                                                            \
    LAPSUM_CLONES void log_gradient_chunk(const T* r, const T* g, int64_t n, LogScale<T> s,      \
                                          T factor, T mean, T* out) {                            \
        log_gradient_body(r, g, n, s, factor, mean, out);                                        \
    }                                                                                            \
    LAPSUM_CLONES void far_log_gradient_chunk(const T* r, const T* g, int64_t n, LogScale<T> s,  \
                                              FarScale<T> far, T factor, T total, T* out) {      \
        far_log_gradient_body(r, g, n, s, far, factor, total, out);                              \
    }

LAPSUM_LOGARITHMS(float)
LAPSUM_LOGARITHMS(double)

// The logarithm of what each score at the boundary has of the budget, with all digits next to 1.
double log_share(const Boundary& at, double k) {
    const double part = k - double(at.above), whole = double(at.tied);
    return 2 * part > whole ? std::log1p((part - whole) / whole) : std::log(part / whole);
}

template <class T>
void write_log_mask(const Row<T>& row, const Solution& solution, double k, double t,
                    const Strided& out) {
    const Threshold& threshold = solution.threshold;
    constexpr T kEnd = std::numeric_limits<T>::infinity();
    if (std::isnan(threshold.hi)) return fill(row, out, std::numeric_limits<T>::quiet_NaN());
    if (threshold.is_hard) {
        const T boundary = T(threshold.hi), share = T(log_share(solution.hard, k));
        return write_row(row, out, [=](const T* r, int64_t n, T* p) {
            for (int64_t i = 0; i < n; ++i)
                p[i] = r[i] > boundary ? T(0) : r[i] == boundary ? share : -kEnd;
        });
    }
    if (k == 0) return fill(row, out, -kEnd);
    const LogScale<T> scale(threshold.hi, threshold.lo, t);
    const Count infinite =
        row.template reduce<Count>([&](int64_t first, const T* r, int64_t n) {
            alignas(64) T values[kChunk];
            T* target = write_target(out, first, values);
            const int64_t found = log_mask_chunk(r, n, scale, target);
            write_chunk(out, first, n, target);
            return Count{found};
        });
    // A budget that the +inf scores use up leaves nothing, not the little that the threshold of
    // such a row would give.
    if (infinite.count > 0 && k == double(infinite.count)) {
        write_row(row, out, [=](const T* r, int64_t n, T* p) {
            for (int64_t i = 0; i < n; ++i) p[i] = r[i] == kEnd ? T(0) : -kEnd;
        });
    }
}

// The row as doubles, where floats would overflow.
template <class T>
Row<double> widened(const Row<T>& row) {
    Row<double> wide;
    wide.scores = row.scores;
    wide.mask = row.mask;
    wide.mask_stride = row.mask_stride;
    wide.largest = row.largest;
    wide.n = row.n;
    wide.threads = row.threads;
    return wide;
}

template <class T>
LogGradientSums log_gradient_sums(const Row<T>& row, const Strided& grad,
                                  const LogScale<T>& scale) {
    return row.template reduce<LogGradientSums>([&](int64_t first, const T* r, int64_t n) {
        alignas(64) T buffer[kChunk];
        return log_gradient_sums_chunk(r, read_chunk(grad, first, n, buffer), n, scale);
    });
}

template <class T>
RowGradient write_log_gradient(Row<T>& row, const Strided& grad, const Threshold& threshold,
                               double t, const Strided& out) {
    if (std::isnan(threshold.hi)) {
        fill(row, out, std::numeric_limits<T>::quiet_NaN());
        return {kNaN, kNaN};
    }
    if (threshold.is_hard || row.n == 0) {
        fill(row, out, T(0));
        return {};
    }
    const LogScale<T> scale(threshold.hi, threshold.lo, t);
    const LogGradientSums sums = log_gradient_sums(row, grad, scale);
    const T factor = T((row.largest ? 1 : -1) / t);
    const auto write = [&](auto chunk) {
        row.each_block([&](int64_t, int64_t first, int64_t count) {
            alignas(64) T scores[kChunk];
            alignas(64) T grads[kChunk];
            alignas(64) T values[kChunk];
            for (int64_t at = first; at < first + count; at += kChunk) {
                const int64_t n = std::min(kChunk, first + count - at);
                T* target = write_target(out, at, values);
                chunk(row.read(at, n, scores), read_chunk(grad, at, n, grads), n, target);
                write_chunk(out, at, n, target);
            }
        });
    };
    double density = sums.e, ge_above = sums.ge_above, mean_v = sums.ve / sums.e, shift = 0;
    if (density >= kDensity) {
        const T mean = T(sums.w / density);
        write([=](const T* r, const T* g, int64_t n, T* to) {
            log_gradient_chunk(r, g, n, scale, factor, mean, to);
        });
    } else {
        Sides sides = sides_of(row, threshold, t);
        // No score takes part, or every log p is 0 or infinite.
        if (sides.shift == kReach || sides.shift == kInfinity) {
            fill(row, out, T(0));
            return {};
        }
        const GradientSums by_sides =
            sums_by_sides<T>(&sides, t, true, true, [&](const Scale<T>& at) {
                return row.template reduce<GradientSums>([&](int64_t, const T* r, int64_t n) {
                    return gradient_sums_chunk(r, zeros<T>(), n, at);
                });
            });
        shift = sides.shift;
        density = by_sides.e;
        mean_v = by_sides.ue / density;
        // g e / p of the scores above, whose p is 1 here.
        ge_above = 0;
        if (sides.weight_above > 0) {
            const Scale<T> at(sides.above, 0, t);
            ge_above = sides.weight_above *
                       row.template reduce<GradientSums>([&](int64_t first, const T* r, int64_t n) {
                              alignas(64) T buffer[kChunk];
                              return gradient_sums_chunk(
                                  r, read_chunk(grad, first, n, buffer), n, at);
                          }).ge;
        }
        const FarScale<T> far(sides, density);
        write([=](const T* r, const T* g, int64_t n, T* to) {
            far_log_gradient_chunk(r, g, n, scale, far, factor, T(sums.w), to);
        });
    }
    double vw = sums.vw;
    if (sizeof(T) == 4 && !std::isfinite(vw) && std::isfinite(sums.w)) {
        const LogScale<double> wide(threshold.hi, threshold.lo, t);
        vw = log_gradient_sums(widened(row), grad, wide).vw;
    }
    RowGradient out_row;
    out_row.budget = ge_above / density;
    if (sums.g_below != 0) out_row.budget += sums.g_below * inverse_density(density, shift);
    out_row.temperature = -kLn2 * (vw - sums.w * mean_v) / t;
    return out_row;
}

}  // namespace
