// A sample of a long row, and the band that it places around the threshold.

#pragma once

#include "iterate.hpp"

namespace {

constexpr int64_t kBandFrom = 1024;  // shorter rows are iterated directly
// Half the band's width. A miss, fewer than one row in ten thousand, costs one more reading.
constexpr double kSampleDeviations = 4.0;

int64_t sample_size(int64_t n) {
    return std::max<int64_t>(int64_t(std::cbrt(double(n)) * std::cbrt(double(n))), 128);
}

// Scores that are gathered. In the middle of a row the band holds 4 n^(2/3) of them where they lie
// evenly, and at most that is n / 16 beside these 8,192.
int64_t most_in_band(int64_t n) { return n / 16 + 8192; }

// Where the scores of a sample are: the same places in every row of a call. Jittered strata, one
// score from each, at a place that a hash of the stratum chooses: a fixed stride would see only one
// phase of a periodic input.
class Places {
   public:
    explicit Places(int64_t n) : at_(size_t(n >= kBandFrom ? sample_size(n) : 0)) {
        const double stratum = double(n) / double(at_.size());
        for (size_t i = 0; i < at_.size(); ++i) {
            const double jitter = double(hash(i + 1) >> 11) * 0x1p-53;
            at_[i] = std::min(int64_t((double(i) + jitter) * stratum), n - 1);
        }
    }

    template <class T>
    std::vector<T> draw(const Row<T>& row) const {
        std::vector<T> sample(at_.size());
        const bool is_plain = is_native<T>(row.scores.dtype) && row.scores.parts == nullptr;
        if (is_plain && row.mask == nullptr && row.largest) {
            const auto* scores = reinterpret_cast<const T*>(row.scores.data);
            for (size_t i = 0; i < at_.size(); ++i) sample[i] = scores[at_[i] * row.scores.stride];
        } else {
            for (size_t i = 0; i < at_.size(); ++i) sample[i] = row.read_one_score(at_[i]);
        }
        return sample;
    }

   private:
    static uint64_t hash(uint64_t x) {
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
        return x ^ (x >> 31);
    }

    std::vector<int64_t> at_;
};

// sigma^-1(k / count): if all scores were r, the threshold would be r - t times this.
double laplace_quantile(double k, double count) {
    return 2 * k <= count ? std::log(2 * k / count) : -std::log(2 * (count - k) / count);
}

// b is the quantile of r_I + Laplace(t) that leaves k above it (the paper's noised mixture): a
// first guess from its mean and variance.
double noised_quantile(const Survey& seen, double origin, double k, double t) {
    const double count = double(seen.finite), mean = seen.sum / count;
    const double variance = std::max(seen.squares / count - mean * mean, 0.0) + 2 * t * t;
    return origin + mean + std::sqrt(variance) * std::log((count - k) / k) / 1.702;
}

// Solve the operator on a sample for a band that holds the threshold; false if the sample does
// not tell. (The paper draws kernel noise instead; solving conditions that noise away.)
template <class T>
bool sample_band(const Row<T>& row, const Places& places, double k, double t, Bracket<T>* band,
                 T* guess) {
    constexpr T kMax = std::numeric_limits<T>::max();
    const std::vector<T> sample = places.draw(row);
    const auto size = int64_t(sample.size());
    const T origin = std::isfinite(sample[0]) ? sample[0] : T(0);
    Survey seen;
    for (int64_t at = 0; at < size; at += kChunk)
        seen.add(survey_chunk(sample.data() + at, std::min(kChunk, size - at), origin));
    const auto count = double(seen.finite);
    const double share = k * double(size) / double(row.n);
    if (seen.excluded + seen.finite != size || !(share < count)) return false;

    Band<T> source{sample.data(), size, {}, 0, 0, t};
    const double quantile = laplace_quantile(share, count);
    Bracket<T> bracket{narrowed<T>(seen.lowest - t * quantile),
                       narrowed<T>(seen.highest - t * quantile), count - 0.5, 0.5};
    const double spread_bound = std::sqrt(share * (1 - share / count));
    const T first = narrowed<T>(noised_quantile(seen, double(origin), share, t));
    const Root middle =
        iterate<T>(source, share, t, count, bracket, first, 0.05 * spread_bound, kBandPasses);
    if (!middle.found) return false;
    const T centre = *guess = saturated<T>(middle.estimate()), inverse = T(kLog2E / t);
    double squares = 0;
    for (int64_t at = 0; at < size; at += kChunk)
        squares += squares_chunk(sample.data() + at, std::min(kChunk, size - at), centre, inverse);
    const double variance = std::max(squares - share * share / double(size), 0.0);
    const double margin = kSampleDeviations * std::sqrt(variance) + 2;

    const double aside =
        margin * 2 * t / std::max(middle.sum_below + middle.sum_above, margin / 8);

    *band = {-kMax, kMax, 0, 0, true};
    if (share + margin < count) {
        bracket = {narrowed<T>(seen.lowest - t * quantile - 40 * t), centre, count - 0.5, share};
        const T near = narrowed<T>(middle.b - aside);
        const Root root =
            iterate<T>(source, share + margin, t, count, bracket, near, margin / 6, kBandPasses);
        if (!root.found) return false;
        band->left = std::min(saturated<T>(root.estimate()), centre);
    }
    if (share > margin) {
        bracket = {centre, narrowed<T>(seen.highest - t * quantile + 40 * t), share, 0.5};
        const T near = narrowed<T>(middle.b + aside);
        const Root root =
            iterate<T>(source, share - margin, t, count, bracket, near, margin / 6, kBandPasses);
        if (!root.found) return false;
        band->right = std::max(saturated<T>(root.estimate()), centre);
    }
    return true;
}

}  // namespace
