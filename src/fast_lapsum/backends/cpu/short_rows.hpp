// Short rows, a tile at a time: sorted, so that a scan finds the two scores that hold the
// threshold, and solved by the interval's closed form relative to those. Nothing is iterated: a row
// costs the same whatever its scores, budget and temperature.

#pragma once

#include "call.hpp"
#include "short_logs.hpp"
#include "tile_rows.hpp"

namespace {

// log x for a positive normal x, to about a unit: 2 atanh((m - 1) / (m + 1)) of x = m 2^e.
LAPSUM_INLINE double log_vectorised(double x) {
    constexpr double kLn2High = 0x1.62e42fefa38p-1, kLn2Low = 0x1.ef35793c7673p-45;
    constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdull, kMantissa = (1ull << 52) - 1;
    const uint64_t bits = bits_as<uint64_t>(x), shifted = bits - kSqrtHalf;
    const auto exponent = double(int32_t(int64_t(shifted) >> 52));
    const double m = bits_as<double>((shifted & kMantissa) + kSqrtHalf);
    const double s = (m - 1) / (m + 1), z = s * s;
    double p = 1.0 / 23;
    p = fused(p, z, 1.0 / 21);
    p = fused(p, z, 1.0 / 19);
    p = fused(p, z, 1.0 / 17);
    p = fused(p, z, 1.0 / 15);
    p = fused(p, z, 1.0 / 13);
    p = fused(p, z, 1.0 / 11);
    p = fused(p, z, 1.0 / 9);
    p = fused(p, z, 1.0 / 7);
    p = fused(p, z, 1.0 / 5);
    p = fused(p, z, 1.0 / 3);
    const double twice = s + s, tail = fused(exponent, kLn2Low, twice * z * p);
    return fused(exponent, kLn2High, twice + tail);
}

// What is known of each row of a tile.
template <class T, int kLanes>
struct TileState {
    alignas(64) double k[kLanes], t[kLanes];
    alignas(64) double valid[kLanes], infinite[kLanes];
    alignas(64) T inverse[kLanes], budget[kLanes];
    alignas(64) T upper[kLanes], lower[kLanes];  // the scores next to the threshold
    alignas(64) double count_above[kLanes], sum_above[kLanes], sum_below[kLanes];
    alignas(64) T half_above[kLanes], half_below[kLanes];  // p is 1 - half e and half e
    alignas(64) double hi[kLanes], lo[kLanes];
};

// From the sums to the threshold (finish() of iterate.hpp, lane by lane) and to the factors that
// make p of decays. With x = e^{-(upper - b) / t} and y = e^{-(b - lower) / t}:
//
//   sum_above x^2 - 2 excess x - sum_below e^{-gap / t} = 0,   x y = e^{-gap / t}.
template <class T, int kLanes>
LAPSUM_INLINE void close_body(TileState<T, kLanes>& s) {
    constexpr double kMax = std::numeric_limits<T>::max();
    alignas(64) double near_sum[kLanes], both[kLanes], log_quotient[kLanes];
    // Several loops, with a factor of 0 or 1 in place of most branches: compilers vectorise those.
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) {
        const double sum_above = s.sum_above[j], sum_below = s.sum_below[j];
        const double excess = s.count_above[j] - s.k[j], size = std::abs(excess);
        const double half_gap = double(s.upper[j]) / 2 - double(s.lower[j]) / 2;  // may overflow
        const double half_decay = decay(half_gap * (kLog2E / s.t[j]));
        const double coupling = std::sqrt(sum_above * sum_below) * half_decay;
        // hypot without squares that underflow
        const double larger = size > coupling ? size : coupling;
        const double smaller = size > coupling ? coupling : size;
        const double ratio = smaller / (larger > 0 ? larger : 1);
        const double root = larger * std::sqrt(1 + ratio * ratio);
        const double near = excess >= 0 ? sum_above : sum_below, sum = root + size;
        const double near_factor = sum / (near > 0 ? near : 1);
        const double far_factor = (near * half_decay / (sum > 0 ? sum : 1)) * half_decay;
        const double above = excess >= 0 ? near_factor : far_factor;
        const double below = excess >= 0 ? far_factor : near_factor;
        s.half_above[j] = T(0.5 * above);
        s.half_below[j] = T(0.5 * below);
        near_sum[j] = near;
        both[j] = sum;
    }
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) {
        const double even = s.sum_below[j] / s.sum_above[j], uneven = near_sum[j] / both[j];
        log_quotient[j] = log_vectorised(s.count_above[j] == s.k[j] ? even : uneven);
    }
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) {
        const double upper = double(s.upper[j]), lower = double(s.lower[j]);
        const double excess = s.count_above[j] - s.k[j], offset = s.t[j] * log_quotient[j];
        const double half_gap = upper / 2 - lower / 2, aside = offset / 2;
        const double side = excess == 0 ? aside : excess;
        // Equal counts put b a little off the middle of the gap: from the end that is nearer.
        const double middle = side < 0 ? aside + half_gap : aside - half_gap;
        const double uneven = side < 0 ? offset : -offset;
        const double anchor = side < 0 ? lower : upper;
        const double distance = excess == 0 ? middle : uneven;
        const double b = anchor + distance;
        const double at_most = b < kMax ? b : kMax, at_least = at_most > -kMax ? at_most : -kMax;
        const double hi = double(T(at_least)), lo = (anchor - hi) + distance;
        const double lo_at_most = lo < kMax ? lo : kMax;
        s.hi[j] = hi;
        s.lo[j] = lo_at_most > -kMax ? lo_at_most : -kMax;
    }
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) {  // k = 0 and k = n: the mask is exactly 0 or 1
        const double far = kSaturation * s.t[j], outside = far < kMax / 2 ? far : kMax / 2;
        const double upper = double(s.upper[j]), lower = double(s.lower[j]);
        const double hi = s.hi[j], lo = s.lo[j];
        const double hi_unless_all = s.k[j] == s.valid[j] ? upper : hi;
        const double lo_unless_all = s.k[j] == s.valid[j] ? -outside : lo;
        s.hi[j] = s.k[j] == s.infinite[j] ? lower : hi_unless_all;
        s.lo[j] = s.k[j] == s.infinite[j] ? outside : lo_unless_all;
    }
}

#define LAPSUM_CLOSE(T, kLanes) \
    LAPSUM_CLONES void close_tile(TileState<T, kLanes>& state) { close_body<T, kLanes>(state); }

LAPSUM_CLOSE(float, 16)
LAPSUM_CLOSE(float, 4)
LAPSUM_CLOSE(double, 8)
LAPSUM_CLOSE(double, 2)

// A row of a tile: what it is solved with, and what comes of it.
template <class T>
struct TileRow {
    Row<T> row;
    Strided out;
    double k, t;
    Solution solution;
    bool is_solved;  // rows without a plain answer are left to solve_row
};

template <class T>
TileRow<T> make_tile_row(const Call& call, const RowIndex& index) {
    return {make_row<T>(call, index, 1),
            index.strided(call.out, call.out_dtype),
            index.budget(call),
            index.temperature(call),
            {},
            false};
}

template <class T, int kLanes>
class TileSolver {
    using Width = Lanes<kLanes>;

   public:
    // At most kLanes rows of one kind; shorter ones end in scores that take no part.
    TileSolver(TileRow<T>* rows, int count) : rows_(rows), count_(count), n_(rows[0].row.n) {
        for (int j = 1; j < count; ++j) n_ = std::max(n_, rows[j].row.n);
    }

    // The solutions, as of solve_row.
    void solve(bool hard) {
        hard_ = hard;
        read_tile<T, kLanes>([&](int j) -> const Row<T>& { return rows_[j].row; }, count_, n_,
                             -std::numeric_limits<T>::infinity(), spare_, scores_);
        classify(sort_lanes(scores_, n_, sorted_, Width()));
        if (any_soft_) {
            const Strided &from = rows_[0].row.scores, &out = rows_[0].out;
            find_brackets(sorted_, n_, state_.inverse, state_.budget, decays_, spare_,
                          state_.upper, state_.lower, ahead_of<kLanes>(from, n_, 1), Width());
            sum_tile(scores_, n_, state_.inverse, state_.upper, state_.lower, decays_,
                     state_.count_above, state_.sum_above, state_.sum_below,
                     ahead_of<kLanes>(out.data == nullptr ? from : out, n_, 0), Width());
            close_tile(state_);
            for (int j = 0; j < count_; ++j)
                rows_[j].solution.threshold = {state_.hi[j], state_.lo[j], false, false};
        }
        if (hard_ || any_limit_) rank();
    }

    // Then, what is asked for of the scores.
    void write(Output output) {
        if (hard_) {
            hard_mask_tile(scores_, n_, boundary_, left_, decays_, Width());
        } else if (output == kLogMask) {
            write_logs();
        } else {
            if (any_soft_)
                mask_tile(scores_, n_, state_.upper, state_.half_above, state_.half_below, decays_,
                          Width());
            if (any_limit_)
                limit_mask_tile(scores_, n_, is_limit_, boundary_, T(1), T(0), share_, decays_,
                                Width());
        }
        write_tile<T, kLanes>([&](int j) -> const Strided& { return rows_[j].out; },
                              [&](int j) { return rows_[j].row.n; }, count_, n_, decays_, spare_);
    }

   private:
    // Which rows have a plain answer, and of those, which are soft and which in the hard limit.
    void classify(bool is_finite) {
        constexpr T kEnd = std::numeric_limits<T>::infinity();
        alignas(64) int32_t infinite[kLanes] = {}, excluded[kLanes] = {}, others[kLanes] = {};
        if (!is_finite) {
            alignas(64) T bound[kLanes];
            alignas(64) int32_t over[kLanes];
            std::fill_n(bound, kLanes, kEnd);
            count_tile(scores_, n_, bound, over, infinite, Width());
            std::fill_n(bound, kLanes, -kEnd);
            count_tile(scores_, n_, bound, over, excluded, Width());
            for (int j = 0; j < kLanes; ++j) others[j] = int32_t(n_) - over[j] - excluded[j];
        }
        for (int j = 0; j < kLanes; ++j) {
            state_.valid[j] = double(n_ - excluded[j]);
            state_.infinite[j] = infinite[j];
            is_limit_[j] = 0;
            if (j < count_) {
                TileRow<T>& row = rows_[j];
                row.solution = {};
                row.is_solved = others[j] == 0 && has_plain_answer(row.k, row.t, j);
                is_limit_[j] = row.is_solved && !(row.t >= double(std::numeric_limits<T>::min()));
                any_soft_ |= row.is_solved && !is_limit_[j];
                any_limit_ |= is_limit_[j] != 0;
            }
            const bool is_soft = j < count_ && rows_[j].is_solved && !is_limit_[j];
            state_.k[j] = is_soft ? rows_[j].k : 0.5;
            state_.t[j] = is_soft ? rows_[j].t : 1.0;
            state_.budget[j] = T(state_.k[j]);
            state_.inverse[j] = T(kLog2E / state_.t[j]);
        }
    }

    bool has_plain_answer(double k, double t, int j) const {
        constexpr double kHighest = std::numeric_limits<T>::max() / kHottest, kLeast = 1e-290;
        const double rest = k - state_.infinite[j];
        if (hard_ && k != std::floor(k)) return false;
        if (!(t >= 0 && t <= kHighest && k <= state_.valid[j])) return false;
        // Budgets next to 0 that quotients would overflow with, and rows of infinities alone.
        return (rest == 0 || rest >= kLeast) && state_.infinite[j] < state_.valid[j];
    }

    // Hard masks, and rows in the hard limit: the score of the budget's rank is where they part.
    void rank() {
        alignas(64) int32_t above[kLanes], tied[kLanes];
        const auto budget = [&](int j) {
            return j < count_ && rows_[j].is_solved ? rows_[j].k : 1.0;
        };
        for (int j = 0; j < kLanes; ++j)
            boundary_[j] = sorted_[(boundary_rank(budget(j)) - 1) * kLanes + j];
        count_tile(scores_, n_, boundary_, above, tied, Width());
        for (int j = 0; j < kLanes; ++j) {
            const double k = budget(j);
            left_[j] = int32_t(k) - above[j];
            share_[j] = tied[j] > 0 ? T((k - above[j]) / tied[j]) : T(0);
            if (j >= count_) continue;
            Solution& solution = rows_[j].solution;
            solution.hard = {double(boundary_[j]), above[j], tied[j]};
            if (is_limit_[j])
                solution.threshold = {double(boundary_[j]), double(share_[j]), true, false};
        }
    }

    void write_logs() {
        constexpr T kEnd = std::numeric_limits<T>::infinity();
        if (any_soft_) {
            LogScales<T, kLanes> scales;
            for (int j = 0; j < kLanes; ++j)
                scales.set(j, state_.hi[j], state_.lo[j], state_.t[j]);
            log_mask_tile(scores_, n_, state_.upper, state_.half_above, scales, decays_);
        }
        if (any_limit_) {
            alignas(64) T logs[kLanes];
            for (int j = 0; j < kLanes; ++j)
                logs[j] = j < count_ ? T(log_share(rows_[j].solution.hard, rows_[j].k)) : -kEnd;
            limit_mask_tile(scores_, n_, is_limit_, boundary_, T(0), -kEnd, logs, decays_, Width());
        }
        // A budget that the +inf scores use up leaves nothing: see write_log_mask.
        for (int j = 0; j < count_; ++j) rows_[j].is_solved &= rows_[j].k != state_.infinite[j];
    }

    TileRow<T>* rows_;
    int count_;
    int64_t n_;
    bool hard_ = false, any_soft_ = false, any_limit_ = false;
    TileState<T, kLanes> state_;
    alignas(64) int32_t is_limit_[kLanes], left_[kLanes];
    alignas(64) T boundary_[kLanes], share_[kLanes];
    alignas(64) T scores_[kTileRow * kLanes];
    alignas(64) T sorted_[kTileRow * kLanes];
    alignas(64) T decays_[kTileRow * kLanes];  // and then p
    alignas(64) T spare_[kTileRow * kLanes];
};

}  // namespace
