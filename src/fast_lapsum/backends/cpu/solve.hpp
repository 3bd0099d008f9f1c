// From a row to its threshold: corners, the sampled band for long rows, the iteration, the last
// resort.

#pragma once

#include "rank.hpp"

namespace {

// One more reading of the row, then an exact solve on the few scores in [lower, upper]. False if
// they are not few, do not hold the root, or do not tell it well.
template <class T>
bool solve_in_band(Row<T>& row, Bracket<T> bracket, T guess, double k, double t, Threshold* out) {
    const T lower = saturated<T>(bracket.left), upper = saturated<T>(bracket.right);
    std::vector<T> band;
    Tails outside;
    int64_t inside = 0;
    const T inverse = T(kLog2E / t);
    const auto tails = [=](const T* r, int64_t n) {
        return tails_chunk(r, n, lower, upper, lower, upper, inverse);
    };
    if (!gather_band(row, lower, upper, most_in_band(row.n), tails, &outside, &inside, band))
        return false;
    Band<T> source{band.data(), inside, outside, lower, upper, t};
    if (bracket.is_guess) {
        bracket.mass_left = double(outside.above + inside);
        bracket.mass_right = double(outside.above);
    }
    const Root root = iterate<T>(source, k, t, double(row.n), bracket, guess, 0, kBandPasses);
    if (!root.found) return false;
    const Threshold found = finish<T>(source, root, k, t);
    if (std::isnan(found.hi)) return false;
    *out = found;
    polish(row, root, k, t, out);
    return true;
}

// Long rows: a sample places a band, and one reading of the row is nearly always enough. The sample
// is the row's own: a band that another row placed would change the last bits.
template <class T>
bool solve_by_guess(Row<T>& row, const Places& places, double k, double t, Threshold* out) {
    Bracket<T> band;
    T guess;
    return sample_band(row, places, k, t, &band, &guess) &&
           solve_in_band(row, band, guess, k, t, out);
}

// What a whole row comes to. `over_limit` is the number of valid scores where k is over it, else
// -1.
struct Solution {
    Threshold threshold;
    Boundary hard;  // of hard masks and of rows in the hard limit
    int64_t over_limit = -1;
};

// The rank that parts a row: hard masks have a whole budget, the hard limit rounds it up.
int64_t boundary_rank(double k) { return std::max<int64_t>(int64_t(std::ceil(k)), 1); }

Threshold hard_limit(const Boundary& at, double k) {
    return {at.score, at.tied > 0 ? (k - double(at.above)) / double(at.tied) : 0.0, true, false};
}

// Long rows with nothing unusual about them. The survey that others need would be one more reading.
template <class T>
bool solve_long(Row<T>& row, const Places& places, double k, double t, bool hard, Solution* out) {
    const bool is_soft = t >= double(std::numeric_limits<T>::min());
    if (row.n < kBandFrom || row.most_passes == 0 || !(k > 0 && k < double(row.n))) return false;
    if (is_soft && !solve_by_guess(row, places, k, t, &out->threshold)) return false;
    if (is_soft && !hard) return true;
    // A boundary at an infinity tells of more or fewer valid scores than the budget.
    if (!select_rank(row, places, boundary_rank(k), &out->hard) || !std::isfinite(out->hard.score))
        return false;
    if (!is_soft) out->threshold = hard_limit(out->hard, k);
    return true;
}

// The last resort, which has no limit to run into: sort a copy and bisect on the rank.
template <class T>
Root search_sorted(const Row<T>& row, double k, double t, int64_t infinite) {
    std::vector<T> ordered;
    for (int64_t i = 0; i < row.n; ++i) {
        const T r = row.read_one_score(i);
        if (std::isfinite(r)) ordered.push_back(r);
    }
    std::sort(ordered.begin(), ordered.end());
    Tails outside;
    outside.above = infinite;
    const T inverse = T(kLog2E / t), highest = std::numeric_limits<T>::max();
    const Band<T> source{ordered.data(), int64_t(ordered.size()), outside, -highest, highest, t};
    int64_t below = -1, above = int64_t(ordered.size());  // ranks whose scores hold the root
    while (above - below > 1) {
        const int64_t middle = below + (above - below) / 2;
        const Pass seen = source.pass(ordered[size_t(middle)], inverse);
        const bool rising =
            (double(seen.above) - k) +
                (double(seen.equal_count) + seen.sum_below - seen.sum_above) / 2 >= 0;
        (rising ? below : above) = middle;
    }
    Root root;
    root.found = true;
    root.step = kNaN;
    root.lower = below >= 0 ? double(ordered[size_t(below)]) : -kInfinity;
    root.upper = above < int64_t(ordered.size()) ? double(ordered[size_t(above)]) : kInfinity;
    return root;
}

template <class T>
Solution solve_row(Row<T>& row, const Places& places, double k, double t, double start, bool hard) {
    Solution out;
    constexpr double kMax = std::numeric_limits<T>::max();
    if (!(k >= 0) || !(t >= 0 && t <= kMax / kHottest) || (hard && k != std::floor(k))) return out;
    const bool is_soft = t >= double(std::numeric_limits<T>::min());
    if (row.n == 0) {
        if (k == 0) out.threshold = {0, 0, !is_soft, false};
        if (k > 0) out.over_limit = 0;
        return out;
    }
    if (solve_long(row, places, k, t, hard, &out)) return out;
    out = {};
    const T first = row.read_one_score(0), origin = std::isfinite(first) ? first : T(0);
    const Survey seen = row.survey(origin);
    const int64_t valid = seen.finite + seen.infinite;
    if (valid + seen.excluded != row.n) return out;  // a NaN
    if (k > double(valid)) {
        out.over_limit = valid;
        return out;
    }
    if (hard || !is_soft) select_rank(row, places, boundary_rank(k), &out.hard);
    const double remaining = k - double(seen.infinite), finite = double(seen.finite);
    if (remaining < 0) {
        out.hard = {kInfinity, 0, seen.infinite};
        out.threshold = hard_limit(out.hard, k);
    } else if (!is_soft) {
        out.threshold = valid > 0 ? hard_limit(out.hard, k) : Threshold{0, 0, true, false};
    } else if (seen.finite == 0) {
        out.threshold = {0, 0, false, false};
    } else if (remaining == 0) {
        out.threshold = {seen.highest, std::min(kSaturation * t, kMax / 2), false, false};
    } else if (remaining == finite) {
        out.threshold = {seen.lowest, -std::min(kSaturation * t, kMax / 2), false, false};
    } else {
        const double quantile = laplace_quantile(remaining, finite);
        Bracket<T> bracket{narrowed<T>(seen.lowest - t * quantile),
                           narrowed<T>(seen.highest - t * quantile), 0, 0};
        // Rounding must not leave the root outside, which may be beyond the largest number.
        bracket.left = std::nextafter(bracket.left, T(-kInfinity));
        bracket.right = std::nextafter(bracket.right, T(kInfinity));
        bracket.mass_left = double(valid) - 0.5;
        bracket.mass_right = double(seen.infinite) + 0.5;
        // A warm start, or the quantile of scores and kernel noise together, taken as logistic.
        const T guess = narrowed<T>(
            std::isnan(start) ? noised_quantile(seen, double(origin), remaining, t) : start);
        const int most_first = std::min(kFirstPasses, row.most_passes),
                  last = std::min(kLastPasses, row.most_passes);
        Root root = iterate<T>(row, k, t, double(valid), bracket, guess, 0, most_first);
        if (!root.found && most_first > 0 &&
            solve_in_band(row, bracket, T(kInfinity), k, t, &out.threshold))
            return out;
        if (!root.found)
            root = iterate<T>(row, k, t, double(valid), bracket, T(kInfinity), 0, last);
        if (!root.found) root = search_sorted(row, k, t, seen.infinite);
        out.threshold = finish<T>(row, root, k, t);
        polish(row, root, k, t, &out.threshold);
    }
    return out;
}

}  // namespace
