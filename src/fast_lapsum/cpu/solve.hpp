// From a row to its threshold: corners, the sampled band for long rows, the iteration, the last
// resort.

#pragma once

#include "iterate.hpp"

namespace {

// Jittered strata: one score from each, at a place that a hash of the stratum chooses. A fixed
// stride would see only one phase of a periodic input.
LAPSUM_INLINE uint64_t hash(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

template <class T>
void draw_sample(const Row<T>& row, std::vector<T>& sample) {
    const double stratum = double(row.n) / double(sample.size());
    for (size_t i = 0; i < sample.size(); ++i) {
        const double jitter = double(hash(i + 1) >> 11) * 0x1p-53;
        const auto at = int64_t((double(i) + jitter) * stratum);
        sample[i] = row.read_one_score(std::min(at, row.n - 1));
    }
}

constexpr int64_t kBandFrom = 1024;  // shorter rows are iterated directly
// Half the band's width. A miss, fewer than one row in ten thousand, costs one more reading.
constexpr double kSampleDeviations = 4.0;

int64_t sample_size(int64_t n) {
    const auto two_thirds = int64_t(std::cbrt(double(n)) * std::cbrt(double(n)));
    return std::max(two_thirds, std::min<int64_t>(n / 8, 4096));
}

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
bool sample_band(const Row<T>& row, double k, double t, Bracket<T>* band, T* guess) {
    constexpr T kMax = std::numeric_limits<T>::max();
    std::vector<T> sample(size_t(sample_size(row.n)));
    draw_sample(row, sample);
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

// One pass: tail sums outside [lower, upper], the scores inside gathered in their order. False if
// there are more of them than `most` or if the row holds a NaN.
template <class T>
bool gather_band(Row<T>& row, T lower, T upper, double t, int64_t most, Tails* outside,
                 std::vector<T>& band) {
    struct Piece {
        int64_t found = 0;
        std::vector<T> scores;
    };
    ++row.passes;
    const T inverse = T(kLog2E / t);
    const int64_t size = row.block_size(), blocks = (row.n + size - 1) / size;
    std::vector<Tails> tails(static_cast<size_t>(blocks));
    std::vector<Piece> pieces(blocks > 1 ? size_t(blocks) : 0);
    band.clear();
    row.each_block([&](int64_t block, int64_t first, int64_t count) {
        alignas(64) T buffer[kChunk];
        alignas(64) T inside[kChunk + kSlack];
        std::vector<T>& kept = blocks > 1 ? pieces[size_t(block)].scores : band;
        Cascade<Tails> sums;
        int64_t found = 0;
        for (int64_t at = 0; at < count; at += kChunk) {
            const int64_t length = std::min(kChunk, count - at);
            const T* r = row.read(first + at, length, buffer);
            const Tails chunk = tails_chunk(r, length, lower, upper, lower, upper, inverse);
            sums.add(chunk);
            if (chunk.above + chunk.below == length) continue;
            const int64_t hits = gather_chunk(r, length, lower, upper, inside);
            found += hits;
            if (found <= most) kept.insert(kept.end(), inside, inside + hits);
        }
        tails[size_t(block)] = sums.total();
        if (blocks > 1) pieces[size_t(block)].found = found;
    });
    *outside = sum_in_pairs(tails.data(), blocks);
    if (blocks > 1) {
        int64_t total = 0;
        for (const Piece& piece : pieces) total += piece.found;
        if (total > most) return false;
        band.reserve(size_t(total));
        for (const Piece& piece : pieces)
            band.insert(band.end(), piece.scores.begin(), piece.scores.end());
    }
    return outside->above + outside->below + int64_t(band.size()) == row.n &&
           int64_t(band.size()) <= most;
}

// One more reading of the row, then an exact solve on the few scores in [lower, upper]. False if
// they are not few, do not hold the root, or do not tell it well.
template <class T>
bool solve_in_band(Row<T>& row, Bracket<T> bracket, T guess, double k, double t, Threshold* out) {
    const T lower = saturated<T>(bracket.left), upper = saturated<T>(bracket.right);
    std::vector<T> band;
    Tails outside;
    if (!gather_band(row, lower, upper, t, row.n / 32 + 8192, &outside, band)) return false;
    Band<T> source{band.data(), int64_t(band.size()), outside, lower, upper, t};
    if (bracket.is_guess) {
        bracket.mass_left = double(outside.above) + double(band.size());
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

// What a row leaves to the next one of its group: rows of a batch are often alike. Groups are the
// same whatever the number of threads, so that results are too.
struct Kin {
    bool is_alike = true;
    double k = kNaN, t = kNaN, b = kNaN, reach = 0;
};

// Long rows: the last row's threshold or a sample places a band, and one reading of the row is
// nearly always enough.
template <class T>
bool solve_by_guess(Row<T>& row, double k, double t, Kin* kin, Threshold* out) {
    if (kin->is_alike && kin->k == k && kin->t == t) {
        const Bracket<T> band{saturated<T>(kin->b - kin->reach), saturated<T>(kin->b + kin->reach),
                              0, 0, true};
        kin->is_alike = solve_in_band(row, band, saturated<T>(kin->b), k, t, out);
        kin->b = out->hi + out->lo;
        if (kin->is_alike) return true;
    }
    Bracket<T> band;
    T guess;
    if (!sample_band(row, k, t, &band, &guess) || !solve_in_band(row, band, guess, k, t, out))
        return false;
    // A row differs from its sample by s, from another row by s sqrt(2 sample / n).
    const double reach =
        std::min(double(guess) - double(band.left), double(band.right) - double(guess));
    *kin = {kin->is_alike, k, t, out->hi + out->lo,
            reach * std::sqrt(2.0 * double(sample_size(row.n)) / double(row.n))};
    return true;
}

// The score of rank `rank` (1 is the largest), with how many lie above it and how many equal it.
struct Boundary {
    double score = kNaN;
    int64_t above = 0, tied = 0;
};

struct Counts {
    int64_t above = 0, inside = 0;
    void add(const Counts& o) {
        above += o.above;
        inside += o.inside;
    }
};

template <class T>
Boundary select_rank(Row<T>& row, int64_t rank) {
    std::vector<T> sample(size_t(std::min(row.n, std::max<int64_t>(sample_size(row.n), 256))));
    draw_sample(row, sample);
    std::sort(sample.begin(), sample.end(), [](T a, T b) { return a > b; });
    const auto size = double(sample.size()), share = double(rank) * size / double(row.n);
    const double margin =
        kSampleDeviations * std::sqrt(share * std::max(1 - share / size, 0.0)) + 2;
    // The wanted score lies in [floor, ceiling]; the next pass looks into [lower, upper].
    T floor = -std::numeric_limits<T>::infinity(), ceiling = std::numeric_limits<T>::infinity();
    T upper = share > margin ? sample[size_t(share - margin)] : ceiling;
    T lower = share + margin < size ? sample[size_t(share + margin)] : floor;
    const int64_t most = row.n / 32 + 4096;
    for (;;) {
        ++row.passes;
        const Counts seen = row.template reduce<Counts>([=](int64_t, const T* r, int64_t count) {
            int32_t above = 0, inside = 0;
#pragma omp simd reduction(+ : above, inside)
            for (int64_t i = 0; i < count; ++i) {
                above += r[i] > upper;
                inside += (r[i] >= lower) & (r[i] <= upper);
            }
            return Counts{above, inside};
        });
        if (seen.above >= rank) {
            floor = lower = std::nextafter(upper, std::numeric_limits<T>::infinity());
            upper = ceiling;
        } else if (seen.above + seen.inside < rank) {
            ceiling = upper = std::nextafter(lower, -std::numeric_limits<T>::infinity());
            lower = floor;
        } else if (lower == upper) {
            return {double(lower), seen.above, seen.inside};
        } else if (seen.inside <= most) {
            std::vector<T> band;
            band.reserve(size_t(seen.inside));
            alignas(64) T buffer[kChunk];
            alignas(64) T inside[kChunk + kSlack];
            for (int64_t at = 0; at < row.n; at += kChunk) {
                const int64_t length = std::min(kChunk, row.n - at);
                const int64_t hits =
                    gather_chunk(row.read(at, length, buffer), length, lower, upper, inside);
                band.insert(band.end(), inside, inside + hits);
            }
            const auto nth = band.begin() + (rank - seen.above - 1);
            std::nth_element(band.begin(), nth, band.end(), [](T a, T b) { return a > b; });
            const T score = *nth;
            Boundary out{double(score), seen.above, 0};
            for (const T r : band) {
                out.above += r > score;
                out.tied += r == score;
            }
            return out;
        } else {
            floor = lower;
            ceiling = upper;
            lower = middle_float(lower, upper);
            if (lower == floor) lower = upper;
        }
    }
}

// What a whole row comes to. `over_limit` is the number of valid scores where k is over it, else
// -1.
struct Solution {
    Threshold threshold;
    Boundary hard;  // filled in for hard masks
    int64_t over_limit = -1;
};

template <class T>
Threshold hard_limit(Row<T>& row, double k) {
    const Boundary at = select_rank(row, std::max<int64_t>(int64_t(std::ceil(k)), 1));
    return {at.score, at.tied > 0 ? (k - double(at.above)) / double(at.tied) : 0.0, true, false};
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
            (double(seen.above) - k) + (double(seen.at) + seen.sum_below - seen.sum_above) / 2 >= 0;
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
Solution solve_row(Row<T>& row, double k, double t, double start, bool hard, Kin* kin) {
    Solution out;
    constexpr double kMax = std::numeric_limits<T>::max();
    if (!(k >= 0) || !(t >= 0 && t <= kMax / kHottest) || (hard && k != std::floor(k))) return out;
    const bool is_soft = t >= double(std::numeric_limits<T>::min());
    if (row.n == 0) {
        if (k == 0) out.threshold = {0, 0, !is_soft, false};
        if (k > 0) out.over_limit = 0;
        return out;
    }
    if (is_soft && !hard && row.n >= kBandFrom && row.most_passes > 0 && k > 0 &&
        k < double(row.n) && solve_by_guess(row, k, t, kin, &out.threshold)) {
        return out;
    }
    const T first = row.read_one_score(0), origin = std::isfinite(first) ? first : T(0);
    const Survey seen = row.survey(origin);
    const int64_t valid = seen.finite + seen.infinite;
    if (valid + seen.excluded != row.n) return out;  // a NaN
    if (k > double(valid)) {
        out.over_limit = valid;
        return out;
    }
    if (hard && k > 0) out.hard = select_rank(row, int64_t(k));
    const double remaining = k - double(seen.infinite), finite = double(seen.finite);
    if (remaining < 0) {
        out.threshold = {kInfinity, k / double(seen.infinite), true, false};
    } else if (!is_soft) {
        out.threshold = hard_limit(row, k);
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
