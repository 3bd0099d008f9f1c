// The score of a rank, for hard masks and the hard limit: by counts, as the threshold is by masses.

#pragma once

#include "gather.hpp"
#include "sampled_band.hpp"

namespace {

// The score of some rank (1 is the largest), with how many lie above it and how many equal it.
struct Boundary {
    double score = kNaN;
    int64_t above = 0, tied = 0;
};

// The score of rank `rank` among n >= rank of them, none of them NaN. Each pass counts the scores
// over a trial and finds those next to it, so that the bracket ends in scores. The trial is where
// the rank should be by the counts at both ends; every third one is a middle, the last of which, in
// the order of floats, ends any search.
template <class T>
Boundary rank_in_list(const T* scores, int64_t n, int64_t rank) {
    T lowest = -std::numeric_limits<T>::infinity(), highest = std::numeric_limits<T>::infinity();
    double count_lowest = double(n), count_highest = 0;
    T trial = scores[0];
    for (int taken = 1;; ++taken) {
        const Split seen = split_list(scores, n, trial);
        const int64_t count = seen.over + seen.equal;
        if (seen.over < rank && count >= rank) return {double(trial), seen.over, seen.equal};
        if (count >= rank) {
            lowest = std::max(T(seen.next_up), std::nextafter(trial, highest));
            count_lowest = double(seen.over);
        } else {
            highest = T(seen.next_down);
            count_highest = double(count);
        }
        double weight = (count_lowest - double(rank) + 0.5) / (count_lowest - count_highest);
        if (taken % 3 == 2) weight = 0.5;
        trial = T(double(saturated<T>(lowest)) * (1 - weight) +
                  double(saturated<T>(highest)) * weight);
        if (taken % 6 == 5) trial = middle_float(lowest, highest);
        if (!(trial >= lowest && trial <= highest)) trial = highest;
    }
}

// The score of rank `rank` of a row; false if the row holds a NaN. A sample tells a band that holds
// it, which is gathered in one reading.
template <class T>
bool select_rank(Row<T>& row, const Places& places, int64_t rank, Boundary* out) {
    constexpr T kEnd = std::numeric_limits<T>::infinity();
    // The score lies in [floor, ceiling]; the next pass looks into [lower, upper].
    T floor = -kEnd, ceiling = kEnd, lower = floor, upper = ceiling;
    const std::vector<T> sample = places.draw(row);
    const auto size = int64_t(sample.size());
    const double share = double(rank) * double(size) / double(row.n);
    const double margin =
        kSampleDeviations * std::sqrt(share * std::max(1 - share / double(size), 0.0)) + 2;
    const bool has_nan =
        std::any_of(sample.begin(), sample.end(), [](T score) { return std::isnan(score); });
    if (has_nan) return false;
    if (share > margin)
        upper = T(rank_in_list(sample.data(), size, int64_t(share - margin) + 1).score);
    if (share + margin < double(size))
        lower = T(rank_in_list(sample.data(), size, int64_t(share + margin) + 1).score);
    for (;;) {
        std::vector<T> band;
        Counts outside;
        int64_t inside = 0;
        const auto counts = [=](const T* r, int64_t n) { return counts_chunk(r, n, lower, upper); };
        const bool is_gathered = gather_band(row, lower, upper, most_in_band(row.n), counts,
                                             &outside, &inside, band);
        if (outside.above + outside.below + inside != row.n) return false;
        if (outside.above >= rank) {
            floor = lower = number_above(upper);
            upper = ceiling;
        } else if (outside.above + inside < rank) {
            ceiling = upper = number_below(lower);
            lower = floor;
        } else if (lower == upper) {
            *out = {double(lower), outside.above, inside};
            return true;
        } else if (is_gathered) {
            *out = rank_in_list(band.data(), inside, rank - outside.above);
            out->above += outside.above;
            return true;
        } else {
            floor = lower;
            ceiling = upper;
            std::vector<T> between;
            std::copy_if(sample.begin(), sample.end(), std::back_inserter(between),
                         [=](T score) { return score >= floor && score <= ceiling; });
            if (between.empty()) {
                lower = middle_float(lower, upper);
                if (lower == floor) lower = upper;
            } else {  // one that many scores may equal, and half of the others are on either side
                const auto middle = between.begin() + std::ptrdiff_t(between.size() / 2);
                std::nth_element(between.begin(), middle, between.end());
                lower = upper = *middle;
            }
        }
    }
}

}  // namespace
