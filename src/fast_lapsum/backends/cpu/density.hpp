// q = softmax(-|u|), the share of each score in the slope of the mass: what all gradients are made
// of. Where a gap of many temperatures holds the threshold all of phi underflows, yet q does not:
// it is taken relative to the nearest score on either side.

#pragma once

#include "solve.hpp"

namespace {

// Sums over e of so little are taken anew, relative to the nearest scores.
constexpr double kDensity = 0x1p-60;
// Distances of finite scores that overflow are so large, so that sums of them are finite.
constexpr double kReach = std::numeric_limits<double>::max() / (1 << 20);

// No upstream gradient, for sums that need none.
template <class T>
const T* zeros() {
    alignas(64) static const T buffer[kChunk] = {};
    return buffer;
}

// The nearest scores on both sides of a threshold and their distances in temperatures.
struct Sides {
    double below, above;
    double u_below, u_above;
    double shift;                       // the smaller distance; infinite where no score takes part
    double weight_below, weight_above;  // e^(shift - distance)
};

template <class T>
Sides sides_of(Row<T>& row, const Threshold& threshold, double t) {
    const Scale<T> scale(threshold.hi, threshold.lo, t);
    const Pass seen = row.pass(scale.hi, scale.inverse);
    const double b = threshold.hi, lo = threshold.lo;  // halved: distances may overflow
    Sides out;
    out.below = seen.equal_count > 0 && lo >= 0 ? b : seen.nearest_below;
    out.above = seen.equal_count > 0 && lo < 0 ? b : seen.nearest_above;
    const auto reached = [](double end, double u) {
        return std::isfinite(end) && !(u < kInfinity) ? kReach : u;
    };
    out.u_below = reached(out.below, ((b / 2 - out.below / 2) + lo / 2) / t * 2);
    out.u_above = reached(out.above, ((out.above / 2 - b / 2) - lo / 2) / t * 2);
    out.shift = std::min(out.u_below, out.u_above);
    out.weight_below = std::exp(out.shift - out.u_below);
    out.weight_above = std::exp(out.shift - out.u_above);
    return out;
}

// The sums relative to both sides, e^shift times what they would be at b. What lies on the other
// side of so wide a gap vanishes by itself. Distances from b are counted in `with_distance` only:
// where they have no use they may overflow.
//
// If a whole row has scores on both sides, the budget is the number of those above, and either side
// has half of all e. That says where b is in the gap; b itself is rounded, in a wide gap by many
// temperatures, so `sides` are put right.
template <class T, class SumsAt>
GradientSums sums_by_sides(Sides* sides, double t, bool is_whole, bool with_distance,
                           SumsAt sums_at) {
    const auto sums_from = [&](double end, double u, double weight) {
        return u < kInfinity && (is_whole || weight > 0) ? sums_at(Scale<T>(end, 0, t))
                                                         : GradientSums{};
    };
    const auto below = sums_from(sides->below, sides->u_below, sides->weight_below);
    const auto above = sums_from(sides->above, sides->u_above, sides->weight_above);
    const bool is_even = is_whole && below.e > 0 && above.e > 0;
    double aside = 0;  // how much nearer b is to the scores below than to those above
    if (is_even) {
        double half_gap = (sides->above / 2 - sides->below / 2) / t;
        half_gap = half_gap < kInfinity ? half_gap : kReach;
        aside = std::log(above.e / below.e) / 2;
        sides->u_below = half_gap - aside;
        sides->u_above = half_gap + aside;
        sides->shift = half_gap - std::abs(aside);
        sides->weight_below = std::exp(std::min(2 * aside, 0.0));
        sides->weight_above = std::exp(std::min(-2 * aside, 0.0));
    }
    GradientSums sums;
    const auto add_side = [&](const GradientSums& side, double u, double weight) {
        if (!(weight > 0 && side.e > 0)) return;
        const double v = with_distance ? u * kLog2E : 0;
        sums.add({weight * side.e, weight * side.ge, weight * (side.ue + v * side.e),
                  weight * (side.gue + v * side.ge)});
    };
    add_side(below, -sides->u_below, sides->weight_below);
    add_side(above, sides->u_above, sides->weight_above);
    // The mean distance, where distances are so large that their difference would be rounding.
    if (is_even && with_distance)
        sums.ue = sums.e * ((below.ue / below.e + above.ue / above.e) / 2 + aside * kLog2E);
    return sums;
}

// q of a score on either side: decay of the distance to that side's nearest score, times a factor.
template <class T>
struct FarScale {
    T below, above, factor_below, factor_above;

    FarScale(const Sides& sides, double sum)
        : below(narrowed<T>(sides.below)),
          above(narrowed<T>(sides.above)),
          factor_below(T(sides.weight_below / sum)),
          factor_above(T(sides.weight_above / sum)) {}

    LAPSUM_MEMBER T share(T x, bool is_above, T inverse) const {
        const T distance = is_above ? x - above : below - x;
        return (is_above ? factor_above : factor_below) * decay(std::abs(distance * inverse));
    }
};

// factor * e, and factor * q by sides.
template <class T>
LAPSUM_INLINE void density_body(const T* r, int64_t n, Scale<T> scale, T factor, T* out) {
    constexpr T kMax = std::numeric_limits<T>::max();
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const T e = decay(std::abs(((r[i] - scale.hi) - scale.lo) * scale.inverse));
        out[i] = std::abs(r[i]) <= kMax ? factor * e : T(0);  // where the factor is no number, too
    }
}

template <class T>
LAPSUM_INLINE void far_density_body(const T* r, int64_t n, Scale<T> scale, FarScale<T> far,
                                    T factor, T* out) {
    constexpr T kMax = std::numeric_limits<T>::max();
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const bool is_above = (r[i] - scale.hi) - scale.lo > 0;
        const T q = far.share(r[i], is_above, scale.inverse);
        out[i] = std::abs(r[i]) <= kMax ? factor * q : T(0);
    }
}

#define LAPSUM_DENSITIES(T)                                                                   \
    LAPSUM_CLONES void density_chunk(const T* r, int64_t n, Scale<T> s, T factor, T* out) {   \
        density_body(r, n, s, factor, out);                                                   \
    }                                                                                         \
    LAPSUM_CLONES void far_density_chunk(const T* r, int64_t n, Scale<T> s, FarScale<T> far,  \
                                         T factor, T* out) {                                  \
        far_density_body(r, n, s, far, factor, out);                                          \
    }

LAPSUM_DENSITIES(float)
LAPSUM_DENSITIES(double)

// 1 / sum(phi) where sum(e) is e^-shift times `sum`; finite: where it would overflow it is only
// ever multiplied with zero.
double inverse_density(double sum, double shift) {
    static const double most = std::log(std::numeric_limits<double>::max()) - 10;
    return std::exp(std::min(shift + std::log(2 / sum), most));
}

}  // namespace
