// The two-exponential iteration: one pass gives a trial threshold's counts and tail sums, and with
// them the root of the interval it lies in; the pass certifies that root when no score is in
// between.

#pragma once

#include "rows.hpp"

namespace {

// log x for S+ x^2 - 2 c x - S- = 0, in the form that does not cancel (the interval's root).
double model_step(double count_excess, double sum_below, double sum_above) {
    const double square = count_excess * count_excess + sum_above * sum_below;
    const double root =
        square > 0x1p-900  // else squares may have underflowed
            ? std::sqrt(square)
            : std::hypot(count_excess, std::sqrt(sum_above) * std::sqrt(sum_below));
    const double x =
        count_excess >= 0 ? (count_excess + root) / sum_above : sum_below / (root - count_excess);
    return std::log(x);
}

// No row is read more often than 64 times: sampled band 1, survey 1, then these, then 2 to finish.
constexpr int kFirstPasses = 6, kLastPasses = 52;
constexpr int kBandPasses = 128;  // of a short list, which costs little
constexpr int kBisectOnlyFrom =
    24;  // then the order of floats is halved until the bracket is empty

// A row's threshold: (hi, lo) with b = hi + lo, or in the hard limit (boundary score, tie share).
struct Threshold {
    double hi = kNaN, lo = kNaN;
    bool is_hard = false;
    bool exact_mask = false;
};

// b between two neighbouring scores of which it is known that they hold it.
struct Root {
    bool found = false;
    double b = 0, step = 0;               // b + step is the root of the pass at b
    double lower = 0, upper = 0;          // the neighbouring scores, infinite where there is none
    double sum_below = 0, sum_above = 0;  // S- and S+ at b
    double spread = 0;                    // sum of e |v| at b

    // Where the root is, for one who does not need it exactly: in a wide gap b is as good as any.
    double estimate() const { return std::isfinite(step) ? b + step : b; }
};

template <class T>
T middle_float(T left, T right) {
    using Bits = std::make_signed_t<typename Real<T>::Bits>;
    const auto order = [](T value) {
        const Bits bits = bits_as<Bits>(value);
        return bits < 0 ? std::numeric_limits<Bits>::min() - bits : bits;
    };
    const Bits a = order(left), b = order(right);
    const Bits middle = (a & b) + ((a ^ b) >> 1);
    return bits_as<T>(middle < 0 ? std::numeric_limits<Bits>::min() - middle : middle);
}

double logit(double mass, double count) {
    const double clipped = std::min(std::max(mass, 0.25), count - 0.25);
    return std::log(clipped / (count - clipped));
}

// A bracket [left, right] of the root; the masses at its ends guide the interpolation. One that a
// sample suggests is a guess: the root may turn out to lie outside.
template <class T>
struct Bracket {
    T left, right;
    double mass_left, mass_right;
    bool is_guess = false;
};

// Iterate the closed form (operator: "iterate the closed form, no sort") until a pass certifies
// itself, or until |mass - k| <= enough.
template <class T, class Source>
Root iterate(Source& source, double k, double t, double count, Bracket<T>& bracket, T start,
             double enough, int most) {
    const T inverse = T(kLog2E / t);
    const bool started = bracket.left < start && start < bracket.right;
    const auto interpolated = [&] {
        const double target_logit = logit(k, count);
        const double a = logit(bracket.mass_left, count), c = logit(bracket.mass_right, count);
        const double weight =
            a > c ? std::min(std::max((a - target_logit) / (a - c), 0.02), 0.98) : 0.5;
        return T(double(saturated<T>(bracket.left)) * (1 - weight) +
                 double(saturated<T>(bracket.right)) * weight);
    };
    T b = started ? start : interpolated();
    const double first_left = double(bracket.left), first_right = double(bracket.right);
    Root root;
    for (int taken = 1; taken <= most; ++taken) {
        const Pass seen = source.pass(b, inverse);
        const double equal = double(seen.equal_count);
        const double excess =
            (double(seen.above) - k) + (equal + seen.sum_below - seen.sum_above) / 2;
        const bool rising = excess >= 0;  // the root is at b or above it
        // Scores equal to b belong to the side that the root leaves behind.
        const double count_above = double(seen.above) + (rising ? 0 : equal);
        double sum_below = seen.sum_below + (rising ? equal : 0),
               sum_above = seen.sum_above + (rising ? 0 : equal);
        sum_below = sum_below < kVanished ? 0 : sum_below;
        sum_above = sum_above < kVanished ? 0 : sum_above;
        root.lower = rising && equal > 0 ? double(b) : seen.nearest_below;
        root.upper = !rising && equal > 0 ? double(b) : seen.nearest_above;
        root.b = double(b);
        root.step = t * model_step(count_above - k, sum_below, sum_above);
        root.sum_below = sum_below;
        root.sum_above = sum_above;
        root.spread = seen.spread;
        const double target = double(b) + root.step;
        (rising ? bracket.left : bracket.right) = b;
        (rising ? bracket.mass_left : bracket.mass_right) = k + excess;

        const double end = rising ? root.upper : root.lower;
        // Compared as distances: b + step would round to a score that it must not reach. By halves:
        // a distance may be over the largest number, and the step of a vanished sum is infinite.
        const double half_step = root.step / 2, half_distance = end / 2 - root.b / 2;
        const bool before_end = std::isfinite(root.step) && (rising ? half_step <= half_distance
                                                                    : half_step >= half_distance);
        const bool nothing_between =
            rising ? end >= double(bracket.right) : end <= double(bracket.left);
        // k scores above and nothing near: the root is in the gap ahead, wherever that ends.
        const bool in_gap = count_above == k && (rising ? sum_above : sum_below) == 0;
        // The step never goes past the root, so a target outside a guessed bracket refutes it.
        const bool is_outside =
            std::isfinite(root.step) && (target < first_left || target > first_right);
        if (bracket.is_guess && (is_outside || (nothing_between && !before_end && !in_gap)))
            return root;
        if (before_end || nothing_between || in_gap || std::abs(excess) <= enough) {
            root.found = true;
            return root;
        }
        T trial;
        if (taken >= kBisectOnlyFrom) {
            trial = middle_float(bracket.left, bracket.right);
        } else if (std::abs(excess) <= 2 * (sum_below + sum_above)) {
            trial = narrowed<T>(target);
        } else if (std::abs(excess) <= 2 || (taken > 3 && taken % 3 == 1)) {
            trial = T(end);  // few scores are left in between, or many that are equal
        } else {
            trial = taken % 3 == 0 ? middle_float(bracket.left, bracket.right) : interpolated();
        }
        if (!(bracket.left < trial && trial < bracket.right))
            trial = middle_float(bracket.left, bracket.right);
        b = trial;
    }
    return root;
}

// The pair (hi, lo) for b = anchor + offset, hi holding all that T can; b itself may be beyond the
// largest number, both of the pair are finite.
template <class T>
Threshold as_pair(double anchor, double offset) {
    Threshold out;
    out.hi = double(saturated<T>(anchor + offset));
    out.lo = double(saturated<T>((anchor - out.hi) + offset));
    return out;
}

// Rounding leaves an error of some |u| eps in every e: where the mass lies far from b, it shows.
bool is_far(const Root& root, double t) {
    const double sum = root.sum_below + root.sum_above;
    return kLn2 * root.spread > 3 * sum || std::abs(root.step) > t || !(sum > 0);
}

// log(total / share): a denormal share, as that of a budget of 5e-324, makes the quotient overflow.
double log_quotient(double total, double share) {
    const double quotient = total / share;
    return quotient < kInfinity ? std::log(quotient) : std::log(total) - std::log(share);
}

// From the neighbouring scores to the threshold. Where they are far from b, sums relative to b
// have few digits left: they are taken again, relative to those scores. NaN if that fails.
template <class T, class Source>
Threshold finish(Source& source, const Root& root, double k, double t) {
    const bool near_below = root.b - root.lower <= 2 * t, near_above = root.upper - root.b <= 2 * t;
    const bool has_below = root.lower > -kInfinity, has_above = root.upper < kInfinity;
    if ((near_below || !has_below) && (near_above || !has_above) && std::isfinite(root.step)) {
        return as_pair<T>(root.b, root.step);
    }
    const T inverse = T(kLog2E / t);
    const Tails sums = source.tails(T(root.upper), T(root.lower), has_below ? T(root.lower) : T(0),
                                    has_above ? T(root.upper) : T(0), inverse);
    // The end of a band is not a score: nothing may be near it, and then it tells nothing.
    if ((has_below && sums.sum_below < kWhole) || (has_above && sums.sum_above < kWhole)) return {};
    const double excess = double(sums.above) - k;
    const double half_gap = root.upper / 2 - root.lower / 2;  // the gap itself may overflow
    // Half the exponent under the root, and hypot: neither square may underflow on its own.
    const double coupling =
        has_below && has_above
            ? std::sqrt(sums.sum_above) * std::sqrt(sums.sum_below) * std::exp(-half_gap / t)
            : 0;
    const double hypotenuse = std::hypot(excess, coupling);
    if (excess > 0)
        return as_pair<T>(root.upper, -t * log_quotient(sums.sum_above, hypotenuse + excess));
    if (excess < 0)
        return as_pair<T>(root.lower, t * log_quotient(sums.sum_below, hypotenuse - excess));
    // Both sums are equal at b, a little off the middle: from the end that is nearer.
    const double aside = t * std::log(sums.sum_below / sums.sum_above) / 2;
    return aside < 0 ? as_pair<T>(root.lower, half_gap + aside)
                     : as_pair<T>(root.upper, aside - half_gap);
}

// Float rows whose mass lies far from the threshold: one more step with sums in double, and the
// mask with all of its digits.
template <class T>
void polish(Row<T>& row, const Root& root, double k, double t, Threshold* threshold) {
    if (sizeof(T) == 8 || !is_far(root, t)) return;
    threshold->exact_mask = true;
    const double b = threshold->hi + threshold->lo;
    if (!(std::abs(b) < 0x1p30 * t)) return;  // a double cannot hold b, the pair can
    Row<double> wide;
    wide.scores = row.scores;
    wide.mask = row.mask;
    wide.mask_stride = row.mask_stride;
    wide.largest = row.largest;
    wide.n = row.n;
    wide.threads = row.threads;
    const Pass seen = wide.pass(b, kLog2E / t);
    ++row.passes;
    const double step =
        model_step(double(seen.above) - k, double(seen.equal_count) + seen.sum_below,
                   seen.sum_above);
    if (std::abs(step) < 0x1p-12) {  // each score that it passes is off by 2^-25 at most
        const bool exact_mask = threshold->exact_mask;
        *threshold = as_pair<T>(b, t * step);
        threshold->exact_mask = exact_mask;
    }
}

}  // namespace
