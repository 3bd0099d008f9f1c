// A rank's part of a row that is spread over many: what it comes to at a band and at pivots. See
// backends/shards.py for the columns of a measurement, and shard_search.py for who asks.

#pragma once

#include <functional>

#include "gather.hpp"
#include "log.hpp"
#include "shard_sort.hpp"

namespace {

// Columns of a measurement, as in backends/shards.py.
enum Column {
    kNanCount,
    kInfiniteCount,
    kValidCount,
    kLowest,
    kHighest,
    kAboveCount,
    kAboveNearest,
    kAboveSum,
    kInsideCount,
    kBelowNearest,
    kBelowSum,
    kColumns
};

// The least and the largest of scores, whatever they are.
struct Range {
    double lowest = kInfinity, highest = -kInfinity;

    void add(const Range& o) {
        lowest = std::min(lowest, o.lowest);
        highest = std::max(highest, o.highest);
    }
};

// The same of finite scores, and how many are infinite; and the scores next to a band.
struct Ends {
    int64_t infinite = 0, excluded = 0;
    double nearest_above = kInfinity, nearest_below = -kInfinity;
    Range range;

    void add(const Ends& o) {
        infinite += o.infinite;
        excluded += o.excluded;
        nearest_above = std::min(nearest_above, o.nearest_above);
        nearest_below = std::max(nearest_below, o.nearest_below);
        range.add(o.range);
    }
};

// What a reading tells of the scores outside of a band; +inf is among those above, -inf below.
struct Outside {
    int64_t above = 0, below = 0;
    Tails tails;
    Range range;

    Outside() = default;
    Outside(const Tails& t, const Range& r) : above(t.above), below(t.below), tails(t), range(r) {}

    void add(const Outside& o) {
        above += o.above;
        below += o.below;
        tails.add(o.tails);
        range.add(o.range);
    }
};

// tails_body with the band's ends as anchors, and the range of all scores.
template <class T>
LAPSUM_INLINE Outside outside_body(const T* r, int64_t n, T lower, T upper, T inverse) {
    constexpr int kLanes = Real<T>::lanes;
    constexpr T kEnd = std::numeric_limits<T>::infinity();
    alignas(64) int32_t above[kLanes] = {}, below[kLanes] = {};
    alignas(64) T sum_above[kLanes] = {}, sum_below[kLanes] = {}, spread[kLanes] = {};
    alignas(64) T lowest[kLanes], highest[kLanes];
    std::fill_n(lowest, kLanes, kEnd);
    std::fill_n(highest, kLanes, -kEnd);
    Groups<T> groups(r, n, kFiller<T>);
    for (int64_t i = 0; i < groups.count; ++i) {
        const T* x = groups.next();
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const bool is_above = x[j] > upper, is_below = x[j] < lower;
            const T d = is_above ? x[j] - upper : lower - x[j];
            const T v = clamp_decay(std::abs(d * inverse)), e = decay_clamped(v);
            spread[j] += e * v;
            above[j] += is_above;
            below[j] += is_below;
            sum_above[j] += is_above ? e : T(0);
            sum_below[j] += is_below ? e : T(0);
            lowest[j] = x[j] < lowest[j] ? x[j] : lowest[j];
            highest[j] = x[j] > highest[j] ? x[j] : highest[j];
        }
    }
    return {{count_of(above), count_of(below), sum_of(sum_above), sum_of(sum_below),
             sum_of(spread)},
            {least_of(lowest), most_of(highest)}};
}

// sum e^{-|r - anchor|/t} of scores, in doubles.
template <class T>
LAPSUM_INLINE double decays_body(const T* r, int64_t n, Scale<double> scale) {
    constexpr int kLanes = Real<double>::lanes;
    alignas(64) double sum[kLanes] = {};
    Groups<T> groups(r, n, kFiller<T>);
    for (int64_t i = 0; i < groups.count; ++i) {
        const T* x = groups.next();
        for (int half = 0; half < Real<T>::lanes; half += kLanes) {
#pragma omp simd
            for (int j = 0; j < kLanes; ++j)
                sum[j] += decay(std::abs((double(x[half + j]) - scale.hi) * scale.inverse));
        }
    }
    return sum_of(sum);
}

template <class T>
LAPSUM_INLINE Ends ends_body(const T* r, int64_t n, T lower, T upper) {
    constexpr int kLanes = Real<T>::lanes;
    constexpr T kMax = std::numeric_limits<T>::max(), kEnd = std::numeric_limits<T>::infinity();
    alignas(64) int32_t infinite[kLanes] = {}, excluded[kLanes] = {};
    alignas(64) T near_above[kLanes], near_below[kLanes], lowest[kLanes], highest[kLanes];
    std::fill_n(near_above, kLanes, kEnd);
    std::fill_n(near_below, kLanes, -kEnd);
    std::fill_n(lowest, kLanes, kEnd);
    std::fill_n(highest, kLanes, -kEnd);
    Groups<T> groups(r, n, kFiller<T>);
    for (int64_t i = 0; i < groups.count; ++i) {
        const T* x = groups.next();
#pragma omp simd
        for (int j = 0; j < kLanes; ++j) {
            const bool is_finite = std::abs(x[j]) <= kMax;
            infinite[j] += x[j] > kMax;
            excluded[j] += x[j] < -kMax;
            const T up = x[j] > upper ? x[j] : kEnd, down = x[j] < lower ? x[j] : -kEnd;
            const T low = is_finite ? x[j] : kEnd, high = is_finite ? x[j] : -kEnd;
            near_above[j] = up < near_above[j] ? up : near_above[j];
            near_below[j] = down > near_below[j] ? down : near_below[j];
            lowest[j] = low < lowest[j] ? low : lowest[j];
            highest[j] = high > highest[j] ? high : highest[j];
        }
    }
    return {count_of(infinite), count_of(excluded), least_of(near_above), most_of(near_below),
            {least_of(lowest), most_of(highest)}};
}

#define LAPSUM_ENDS(T)                                                                           \
    LAPSUM_CLONES Outside outside_chunk(const T* r, int64_t n, T lower, T upper, T inverse) {    \
        Outside sum;                                                                             \
        for (int64_t at = 0; at < n; at += kPiece<T>) {                                          \
            const int64_t count = std::min(kPiece<T>, n - at);                                   \
            sum.add(outside_body(r + at, count, lower, upper, inverse));                         \
        }                                                                                        \
        return sum;                                                                              \
    }                                                                                            \
    LAPSUM_CLONES double decays_chunk(const T* r, int64_t n, Scale<double> scale) {              \
        double sum = 0;                                                                          \
        for (int64_t at = 0; at < n; at += kPiece<double>)                                       \
            sum += decays_body(r + at, std::min(kPiece<double>, n - at), scale);                 \
        return sum;                                                                              \
    }                                                                                            \
    LAPSUM_CLONES Ends ends_chunk(const T* r, int64_t n, T lower, T upper) {                     \
        return ends_body(r, n, lower, upper);                                                    \
    }

LAPSUM_ENDS(float)
LAPSUM_ENDS(double)

// The scores on one side of a place, relative to the nearest of them, or to a number beside it.
struct Side {
    double nearest, sum;

    // What the sum is at b: of scores above it, and of scores below it.
    double above(double b, double t) const { return scaled((b / 2 - nearest / 2) / t * 2); }
    double below(double b, double t) const { return scaled((nearest / 2 - b / 2) / t * 2); }

   private:
    double scaled(double exponent) const { return sum > 0 ? sum * std::exp(exponent) : 0.0; }
};

// sum_i e^{-|r_i - anchor|/t} of sorted scores, in doubles.
template <class T>
double decayed_sum(const T* r, int64_t n, double anchor, double t) {
    const Scale<double> scale(anchor, 0, t);
    Cascade<GradientSums> sums;
    for (int64_t at = 0; at < n; at += kChunk)
        sums.add({decays_chunk(r + at, std::min(kChunk, n - at), scale)});
    return sums.total().e;
}

// A band that was read: what is outside of it, and the scores inside, descending.
template <class T>
struct ReadBand {
    double low, high;  // [low, high)
    double columns[kColumns];
    std::vector<T> inside;

    Side above() const { return {columns[kAboveNearest], columns[kAboveSum]}; }
    Side below() const { return {columns[kBelowNearest], columns[kBelowSum]}; }
};

// One reading of a row. Others follow where scores are infinite, and where sums relative to the
// band's ends lose their digits, because the nearest score outside is far from it, or because the
// mass is far away. Elsewhere an end stands for the nearest score.
template <class T>
void read_band(Row<T>& row, double low, double high, double t, ReadBand<T>* out) {
    constexpr T kMax = std::numeric_limits<T>::max();
    const T lower = std::max(T(low), -kMax), upper = number_below(T(high));
    const T inverse = T(kLog2E / t);
    Outside seen;
    int64_t inside = 0;
    out->inside.clear();
    if (row.n > 0) {
        gather_band<Outside>(
            row, lower, upper, std::numeric_limits<int64_t>::max(),
            [=](const T* r, int64_t n) { return outside_chunk(r, n, lower, upper, inverse); },
            &seen, &inside, out->inside);
    }
    sort_descending(out->inside);
    const Tails& sums = seen.tails;
    Ends ends;
    ends.range = seen.range;
    constexpr double kFar = 3 * kLog2E;  // as for a last step with doubles (iterate.hpp)
    const double mass = sums.sum_above + sums.sum_below + double(inside);
    const bool is_infinite = seen.range.highest > kMax || seen.range.lowest < -kMax;
    const bool is_far = sizeof(T) == 4 && sums.spread > kFar * mass;
    const bool is_lost = (seen.above > 0 && sums.sum_above < kWhole) ||
                         (seen.below > 0 && sums.sum_below < kWhole);
    const bool is_plain = !(is_infinite || is_far || is_lost);
    if (!is_plain) {
        ends = row.template reduce<Ends>([=](int64_t, const T* r, int64_t n) {
            return ends_chunk(r, n, lower, upper);
        });
    }
    // +inf is above every band, and is no score of it.
    const bool has_above = seen.above > ends.infinite, has_below = seen.below > ends.excluded;
    Side above{kInfinity, 0}, below{-kInfinity, 0};
    if (is_plain) {
        if (has_above) above = {double(upper), sums.sum_above};
        if (has_below) below = {double(lower), sums.sum_below};
    } else {
        const double from = has_above ? ends.nearest_above : 0, to = has_below ? ends.nearest_below : 0;
        Row<double> wide = widened(row);
        const Tails tails = wide.tails(double(lower), double(upper), to, from, kLog2E / t);
        if (has_above) above = {from, tails.sum_above};
        if (has_below) below = {to, tails.sum_below};
    }
    out->low = low;
    out->high = high;
    double* to = out->columns;
    to[kNanCount] = double(row.n - seen.above - seen.below - inside);
    to[kInfiniteCount] = double(ends.infinite);
    to[kValidCount] = double(row.n - ends.excluded) - to[kNanCount];
    to[kLowest] = ends.range.lowest;
    to[kHighest] = ends.range.highest;
    to[kAboveCount] = double(seen.above - ends.infinite);
    to[kAboveNearest] = above.nearest;
    to[kAboveSum] = above.sum;
    to[kInsideCount] = double(inside);
    to[kBelowNearest] = below.nearest;
    to[kBelowSum] = below.sum;
}

// So many of n sorted scores: all, and then NaN, or as many as stand for them.
template <class T>
void quantiles(const T* r, int64_t n, int64_t size, T* out) {
    for (int64_t i = 0; i < std::min(n, size); ++i)
        out[i] = r[n > size ? i * (n - 1) / (size - 1) : i];
    for (int64_t i = n; i < size; ++i) out[i] = std::numeric_limits<T>::quiet_NaN();
}

// What a band that was read tells of places in it: counts and both sides, at several of them.
template <class T>
class Lookup {
   public:
    Lookup(const ReadBand<T>& band, std::vector<double> places, double t) {
        std::sort(places.begin(), places.end(), std::greater<double>());
        at_ = std::move(places);
        const T* r = band.inside.data();
        const auto n = int64_t(band.inside.size());
        for (const double place : at_) {
            const auto end = std::partition_point(
                band.inside.begin(), band.inside.end(),
                [=](T score) { return double(score) >= place; });
            counts_.push_back(end - band.inside.begin());
        }
        Side above = band.above();
        int64_t done = 0;
        for (const int64_t count : counts_) {
            if (count > done) {
                const double last = double(r[count - 1]);
                above = {last, above.above(last, t) + decayed_sum(r + done, count - done, last, t)};
                done = count;
            }
            above_.push_back(above);
        }
        Side below = band.below();
        below_.resize(at_.size());
        done = n;
        for (size_t i = at_.size(); i-- > 0;) {
            if (counts_[i] < done) {
                const double first = double(r[counts_[i]]);
                below = {first, below.below(first, t) +
                                    decayed_sum(r + counts_[i], done - counts_[i], first, t)};
                done = counts_[i];
            }
            below_[i] = below;
        }
    }

    struct Found {
        int64_t inside_above;  // scores of the band at or above the place
        Side above, below;
    };

    Found find(double place) const {
        const auto at = std::lower_bound(at_.begin(), at_.end(), place, std::greater<double>());
        const auto i = size_t(at - at_.begin());
        return {counts_[i], above_[i], below_[i]};
    }

   private:
    std::vector<double> at_;
    std::vector<int64_t> counts_;
    std::vector<Side> above_, below_;
};

// The measurement at [low, high), a part of the band that was read, and at the pivots: NaN for those
// outside of that band. `nodes` that there are no scores for are NaN.
template <class T>
void measure_band(const ReadBand<T>& band, double low, double high, double t, const double* pivots,
                  int64_t pivot_count, int64_t size, double* columns, T* nodes) {
    std::vector<double> places(pivots, pivots + pivot_count);
    places.push_back(low);
    places.push_back(high);
    const auto is_known = [&](double place) { return band.low <= place && place <= band.high; };
    places.erase(std::remove_if(places.begin(), places.end(),
                                [&](double place) { return !is_known(place); }),
                 places.end());
    const Lookup<T> known(band, std::move(places), t);
    std::copy_n(band.columns, kColumns, columns);
    const auto top = known.find(high), bottom = known.find(low);
    const int64_t first = top.inside_above, inside = bottom.inside_above - first;
    columns[kAboveCount] += double(first);
    columns[kAboveNearest] = top.above.nearest;
    columns[kAboveSum] = top.above.sum;
    columns[kInsideCount] = double(inside);
    columns[kBelowNearest] = bottom.below.nearest;
    columns[kBelowSum] = bottom.below.sum;
    for (int64_t i = 0; i < pivot_count; ++i) {
        double *count = columns + kColumns + i, *half = count + pivot_count;
        *count = *half = kNaN;
        if (!is_known(pivots[i])) continue;
        const auto at = known.find(pivots[i]);
        *count = band.columns[kAboveCount] + double(at.inside_above);
        *half = (at.below.below(pivots[i], t) - at.above.above(pivots[i], t)) / 2;
    }
    quantiles(band.inside.data() + first, inside, size, nodes);
}

}  // namespace
