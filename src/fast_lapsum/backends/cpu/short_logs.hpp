// log p of short rows and its gradients, a tile at a time: log.hpp, lane by lane.

#pragma once

#include "log.hpp"
#include "tile.hpp"

namespace {

// The LogScale of each lane.
template <class T, int kLanes>
struct LogScales {
    alignas(64) T half_hi[kLanes], half_lo[kLanes], per_u[kLanes], per_v[kLanes], farthest[kLanes];

    void set(int j, double hi, double lo, double t) {
        const LogScale<T> scale(hi, lo, t);
        half_hi[j] = scale.half_hi;
        half_lo[j] = scale.half_lo;
        per_u[j] = scale.per_u;
        per_v[j] = scale.per_v;
        farthest[j] = scale.farthest;
    }
};

// log p in the place of the decays that tile_sums_body made.
template <class T, int kLanes>
LAPSUM_INLINE void log_mask_of_tile(const T* tile, int64_t n, const T* upper, const T* half_above,
                                    const LogScales<T, kLanes>& s, T* decays) {
    for (int64_t i = 0; i < n; ++i) {
        const T* x = tile + i * kLanes;
        T* to = decays + i * kLanes;
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const T r = x[j], e = 2 * half_above[j] * to[j];
            const T half_distance = fused(T(0.5), r, -s.half_hi[j]) - s.half_lo[j];
            const T above = log_of_rest(e < 1 ? e : T(1));
            const T below = fused(half_distance, s.per_u[j], T(-kLn2));
            to[j] = r >= upper[j] ? above : below;
        }
    }
}

template <class T, int kLanes>
struct LogGradientState {
    LogScales<T, kLanes> scale;
    alignas(64) T factor[kLanes], mean[kLanes];  // 1 / t with the side's sign; sum(w) / sum(e)
    alignas(64) double e[kLanes], w[kLanes], ve[kLanes], vw[kLanes];
    alignas(64) double g_below[kLanes], ge_above[kLanes];

    void set(int j, double hi, double lo, double t, bool largest) {
        scale.set(j, hi, lo, t);
        factor[j] = T((largest ? 1 : -1) / t);
    }

    // From sums to gradients; false where write_log_gradient has to take them by other means.
    bool finish(int j, double t, RowGradient* out) {
        mean[j] = T(w[j] / e[j]);
        out->budget = ge_above[j] / e[j];
        if (g_below[j] != 0) out->budget += g_below[j] * inverse_density(e[j], 0);
        out->temperature = -kLn2 * (vw[j] - w[j] * (ve[j] / e[j])) / t;
        return e[j] >= kDensity && std::isfinite(mean[j]) && std::isfinite(vw[j]);
    }
};

// Keeps the decays, and w in the place of g.
template <class T, int kLanes>
LAPSUM_INLINE void log_gradient_sums_of_tile(const T* tile, T* grads, int64_t n, T* decays,
                                             LogGradientState<T, kLanes>& s,
                                             const Ahead (&ahead)[3]) {
    constexpr int64_t kInARow = kPiece<T> / Real<T>::lanes;
    for (double* sum : {s.e, s.w, s.ve, s.vw, s.g_below, s.ge_above}) std::fill_n(sum, kLanes, 0.0);
    for (int64_t first = 0; first < n; first += kInARow) {
        alignas(64) T e_sum[kLanes] = {}, w_sum[kLanes] = {}, ve_sum[kLanes] = {};
        alignas(64) T vw_sum[kLanes] = {}, g_below[kLanes] = {}, ge_above[kLanes] = {};
        for (int64_t i = first; i < std::min(first + kInARow, n); ++i) {
            const T* x = tile + i * kLanes;
            T *y = grads + i * kLanes, *to = decays + i * kLanes;
            for (const Ahead& lines : ahead) lines.fetch(i);
#pragma omp simd
            for (int j = 0; j < kLanes; ++j) {
                const T half_distance =
                    fused(T(0.5), x[j], -s.scale.half_hi[j]) - s.scale.half_lo[j];
                const T v = half_distance * s.scale.per_v[j], e = decay(std::abs(v)), g = y[j];
                const T grad = std::abs(half_distance) <= s.scale.farthest[j] ? g : T(0);
                const T up = half_distance > 0 ? grad : T(0), down = grad - up;
                const T ge = up * (e / (1 - T(0.5) * e)), w = T(0.5) * ge + down;
                const T v_near = e > 0 ? v : T(0), v_weighted = w != 0 ? v : T(0);
                to[j] = e;
                y[j] = w;
                e_sum[j] += e;
                w_sum[j] += w;
                ve_sum[j] += v_near * e;
                vw_sum[j] += v_weighted * w;
                g_below[j] += down;
                ge_above[j] += ge;
            }
        }
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            s.e[j] += double(e_sum[j]);
            s.w[j] += double(w_sum[j]);
            s.ve[j] += double(ve_sum[j]);
            s.vw[j] += double(vw_sum[j]);
            s.g_below[j] += double(g_below[j]);
            s.ge_above[j] += double(ge_above[j]);
        }
    }
}

// (w - q sum(w)) / t, in the place of the decays.
template <class T, int kLanes>
LAPSUM_INLINE void log_gradient_of_tile(const T* weighted, int64_t n, T* decays,
                                        const LogGradientState<T, kLanes>& s) {
    for (int64_t i = 0; i < n; ++i) {
        const T* w = weighted + i * kLanes;
        T* e = decays + i * kLanes;
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) e[j] = s.factor[j] * (w[j] - e[j] * s.mean[j]);
    }
}

#define LAPSUM_TILE_LOGARITHMS(T, kLanes)                                                       \
    LAPSUM_CLONES void log_mask_tile(const T* tile, int64_t n, const T* upper,                  \
                                     const T* half_above, const LogScales<T, kLanes>& scales,   \
                                     T* decays) {                                               \
        log_mask_of_tile<T, kLanes>(tile, n, upper, half_above, scales, decays);                \
    }                                                                                           \
    LAPSUM_CLONES void sum_gradients(const T* tile, T* grads, int64_t n, T* decays,             \
                                     LogGradientState<T, kLanes>& state,                        \
                                     const Ahead(&ahead)[3]) {                                  \
        log_gradient_sums_of_tile<T, kLanes>(tile, grads, n, decays, state, ahead);             \
    }                                                                                           \
    LAPSUM_CLONES void make_gradients(const T* grads, int64_t n, T* decays,                     \
                                      const LogGradientState<T, kLanes>& state) {               \
        log_gradient_of_tile<T, kLanes>(grads, n, decays, state);                               \
    }

LAPSUM_TILE_LOGARITHMS(float, 16)
LAPSUM_TILE_LOGARITHMS(float, 4)
LAPSUM_TILE_LOGARITHMS(double, 8)
LAPSUM_TILE_LOGARITHMS(double, 2)

}  // namespace
