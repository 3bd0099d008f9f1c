// Gradients of short rows, a tile at a time.

#pragma once

#include "short_logs.hpp"
#include "tile_rows.hpp"

namespace {

// Longer rows gain nothing from sharing vectors: there is nothing to sort.
constexpr int64_t kTileGradient = 256;
static_assert(kTileGradient <= kTileRow, "tiles have room for them");

// What the gradients of a tile's rows are made of; LogGradientState is its counterpart.
template <class T, int kLanes>
struct GradientState {
    alignas(64) T hi[kLanes], lo[kLanes], inverse[kLanes];
    alignas(64) T factor[kLanes], mean[kLanes];  // 1 / (2 t) with the side's sign, and <g, q>
    alignas(64) double e[kLanes], ge[kLanes], ue[kLanes], gue[kLanes];

    void set(int j, double hi_, double lo_, double t, bool largest) {
        const Scale<T> scale(hi_, lo_, t);
        hi[j] = scale.hi;
        lo[j] = scale.lo;
        inverse[j] = scale.inverse;
        factor[j] = T((largest ? 0.5 : -0.5) / t);
    }

    // From sums to gradients; false where all of phi has underflowed.
    bool finish(int j, double t, RowGradient* out) {
        const double mean_g = ge[j] / e[j], mean_v = ue[j] / e[j];
        mean[j] = T(mean_g);
        out->budget = mean_g;
        out->temperature = -0.5 * kLn2 * (gue[j] - mean_v * ge[j]) / t;
        return e[j] >= kDensity;
    }
};

// gradient_sums_body of simd.hpp, lane by lane; keeps the decays.
template <class T, int kLanes>
LAPSUM_INLINE void gradient_sums_of_tile(const T* tile, const T* grads, int64_t n, T* decays,
                                         GradientState<T, kLanes>& s, const Ahead (&ahead)[3]) {
    constexpr int64_t kInARow = kPiece<T> / Real<T>::lanes;
    std::fill_n(s.e, kLanes, 0.0);
    std::fill_n(s.ge, kLanes, 0.0);
    std::fill_n(s.ue, kLanes, 0.0);
    std::fill_n(s.gue, kLanes, 0.0);
    for (int64_t first = 0; first < n; first += kInARow) {
        alignas(64) T e_sum[kLanes] = {}, ge_sum[kLanes] = {}, ue_sum[kLanes] = {};
        alignas(64) T gue_sum[kLanes] = {};
        for (int64_t i = first; i < std::min(first + kInARow, n); ++i) {
            const T *x = tile + i * kLanes, *y = grads + i * kLanes;
            T* to = decays + i * kLanes;
            for (const Ahead& lines : ahead) lines.fetch(i);
#pragma omp simd
            for (int j = 0; j < kLanes; ++j) {
                const T v = ((x[j] - s.hi[j]) - s.lo[j]) * s.inverse[j], e = decay(std::abs(v));
                const T product = y[j] * e;
                const T ge = e > 0 ? product : T(0), v_live = e > 0 ? v : T(0);
                to[j] = e;
                e_sum[j] += e;
                ge_sum[j] += ge;
                ue_sum[j] += v_live * e;
                gue_sum[j] += v_live * ge;
            }
        }
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            s.e[j] += double(e_sum[j]);
            s.ge[j] += double(ge_sum[j]);
            s.ue[j] += double(ue_sum[j]);
            s.gue[j] += double(gue_sum[j]);
        }
    }
}

// phi / t (g - <g, q>), in the place of the decays.
template <class T, int kLanes>
LAPSUM_INLINE void gradient_of_tile(const T* grads, int64_t n, T* decays,
                                    const GradientState<T, kLanes>& s) {
    for (int64_t i = 0; i < n; ++i) {
        const T* y = grads + i * kLanes;
        T* e = decays + i * kLanes;
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const T gradient = (s.factor[j] * e[j]) * (y[j] - s.mean[j]);
            e[j] = e[j] > 0 ? gradient : T(0);
        }
    }
}

#define LAPSUM_TILE_GRADIENTS(T, kLanes)                                                        \
    LAPSUM_CLONES void sum_gradients(const T* tile, const T* grads, int64_t n, T* decays,       \
                                     GradientState<T, kLanes>& state,                           \
                                     const Ahead(&ahead)[3]) {                                  \
        gradient_sums_of_tile<T, kLanes>(tile, grads, n, decays, state, ahead);                 \
    }                                                                                           \
    LAPSUM_CLONES void make_gradients(const T* grads, int64_t n, T* decays,                     \
                                      const GradientState<T, kLanes>& state) {                  \
        gradient_of_tile<T, kLanes>(grads, n, decays, state);                                   \
    }

LAPSUM_TILE_GRADIENTS(float, 16)
LAPSUM_TILE_GRADIENTS(float, 4)
LAPSUM_TILE_GRADIENTS(double, 8)
LAPSUM_TILE_GRADIENTS(double, 2)

template <class T>
struct GradientRow {
    Row<T> row, grad;  // the latter as scores that all take part
    Strided out;
    Threshold threshold;
    double t;
    RowGradient gradient;
    bool is_solved;  // rows without a plain answer are left to backward_row
};

// By State, of the mask or of its logarithm.
template <class T, int kLanes, template <class, int> class State>
class TileGradient {
   public:
    TileGradient(GradientRow<T>* rows, int count)
        : rows_(rows), count_(count), n_(rows[0].row.n) {
        for (int j = 1; j < count; ++j) n_ = std::max(n_, rows[j].row.n);
    }

    void solve() {
        read_tile<T, kLanes>([&](int j) -> const Row<T>& { return rows_[j].row; }, count_, n_,
                             -std::numeric_limits<T>::infinity(), spare_, scores_);
        read_tile<T, kLanes>([&](int j) -> const Row<T>& { return rows_[j].grad; }, count_, n_,
                             T(0), spare_, grads_);
        for (int j = 0; j < kLanes; ++j) {
            const GradientRow<T>& row = rows_[j < count_ ? j : 0];
            const bool is_plain = !std::isnan(row.threshold.hi) && !row.threshold.is_hard;
            state_.set(j, is_plain ? row.threshold.hi : 0.0, is_plain ? row.threshold.lo : 0.0,
                       is_plain ? row.t : 1.0, row.row.largest);
            if (j < count_) rows_[j].is_solved = is_plain;
        }
        const Ahead ahead[3] = {ahead_of<kLanes>(rows_[0].row.scores, n_, 1),
                                ahead_of<kLanes>(rows_[0].grad.scores, n_, 1),
                                ahead_of<kLanes>(rows_[0].out, n_, 0)};
        sum_gradients(scores_, grads_, n_, decays_, state_, ahead);
        for (int j = 0; j < kLanes; ++j) {
            RowGradient gradient;
            const bool is_told = state_.finish(j, rows_[j < count_ ? j : 0].t, &gradient);
            if (j >= count_) continue;
            rows_[j].gradient = gradient;
            rows_[j].is_solved &= is_told;
        }
        make_gradients(grads_, n_, decays_, state_);
        write_tile<T, kLanes>([&](int j) -> const Strided& { return rows_[j].out; },
                              [&](int j) { return rows_[j].row.n; }, count_, n_, decays_, spare_);
    }

   private:
    GradientRow<T>* rows_;
    int count_;
    int64_t n_;
    State<T, kLanes> state_;
    alignas(64) T scores_[kTileGradient * kLanes];
    alignas(64) T grads_[kTileGradient * kLanes];
    alignas(64) T decays_[kTileGradient * kLanes];  // and then the gradient
    alignas(64) T spare_[kTileGradient * kLanes];
};

}  // namespace
