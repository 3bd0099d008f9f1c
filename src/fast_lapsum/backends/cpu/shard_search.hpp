// The search for the threshold of a row that is spread over many ranks, on what they have told each
// other. backends/torch/shard_search.py and shard_solve.py are the same for any device, with the
// reasons.

#pragma once

#include "shard_state.hpp"

namespace {

// Fields of Solved in backends/shards.py, without the ties of ranks.
enum Solved { kHi, kLo, kLogShare, kIsUsedUp, kWantedTies, kValid, kHasNan, kSolved };

// How far from where a random sample puts it the threshold may be: missed once in 10,000 rows.
constexpr double kDeviations = 4;

// The part of what the mass may be off by that a band has room for where the mass varies evenly: as
// a rule, and after one that was missed.
constexpr double kUncertain = 0.25, kAtMost = 0.5;

// Where the samples of all ranks put the threshold.
void begin_row(const SearchCall& call, int64_t row) {
    const Asked asked(call, row);
    Messages messages(call, kHeader);
    NodeLists lists;
    Variation all;
    double infinite = 0, between = 0, spare = 0;
    for (int64_t rank = 0; rank < call.ranks; ++rank) {
        const double length = messages.number(rank, kLength);
        const NodeWeights weights(length, call.size);
        const double* values = messages.nodes(rank, row);
        Variation own;
        for (int64_t i = 0; i < call.size; ++i) {
            if (values[i] == kInfinity) infinite += weights.of(i);
            if (!std::isfinite(values[i])) continue;
            lists.add(values[i], weights.of(i));
            own.add(values[i]);
            all.add(values[i]);
        }
        lists.end_list();
        if (length > double(call.size)) {
            between += weights.step * own.of(asked);
            spare += own.of(asked);
        }
    }
    const OuterSum above{finite_or_zero(all.highest), 0, infinite};
    const OuterSum below{finite_or_zero(all.lowest), 0, 0};
    const NodeCurve curve(lists.merged(), above, below, asked.target, asked.scale);
    const double excess = infinite - asked.target;
    const auto [hi, lo] = curve.root(excess, asked.scale);
    // Quantiles of a random part are off by that part's deviation, too.
    double deviation = 0;
    for (int64_t rank = 0; rank < call.ranks; ++rank) {
        const double length = messages.number(rank, kLength), drawn = messages.number(rank, kDrawn);
        if (!(drawn < length)) continue;
        double sum = 0, squares = 0, count = 0;
        for (const Node* node = lists.begin(size_t(rank)); node != lists.end(size_t(rank)); ++node) {
            const double u = ((node->value - hi) - lo) / asked.scale;
            const double half = std::exp(-std::abs(u)) / 2;
            double p = u > 0 ? 1 - half : half;
            if (asked.is_hard) p = node->value > hi ? 1 : 0;
            if (std::isnan(p)) continue;
            sum += p;
            squares += p * p;
            count += 1;
        }
        const double mean = sum / std::max(count, 1.0);
        const double variance = std::max(squares / std::max(count, 1.0) - mean * mean, 0.0);
        deviation += length * length / std::max(drawn, 1.0) * (variance + 1 / length);
    }
    spare += kDeviations * std::sqrt(deviation);
    SearchState state{-kInfinity, kInfinity, -kInfinity, kInfinity};
    // All rows of a call wait for one whose band is missed.
    const double less = (call.rows == 1 ? kAtMost : 1) * between + spare;
    state.place_band(curve, excess, asked, between + spare, less, call.dtype);
    state.write(call, row, true);
}

// The measurements of all ranks at a row's band, as one.
struct Seen {
    double counts[kColumns] = {};  // sums over ranks of what is counted
    double lowest = kInfinity, highest = -kInfinity;
    // How far the mass may be from what nodes say: by the scores between two nodes, and by one score
    // of each rank, since places of nodes are whole.
    double between = 0, spare = 0;
    double excess;  // finite scores above the band, less what of the target is left for finite ones
    bool is_complete = true;
    OuterSum above{}, below{};
    NodeLists lists;

    Seen(const SearchCall& call, int64_t row, const SearchState& state, const Asked& asked)
        : columns_(kColumns + 2 * (3 + call.cuts)), row_(row), call_(call),
          messages_(call, call.rows * columns_) {
        for (int64_t rank = 0; rank < call.ranks; ++rank) {
            for (int column : {kNanCount, kInfiniteCount, kValidCount, kAboveCount, kInsideCount})
                counts[column] += at(rank, column);
            lowest = std::min(lowest, at(rank, kLowest));
            highest = std::max(highest, at(rank, kHighest));
        }
        lowest = finite_or_zero(lowest);
        highest = finite_or_zero(highest);
        above = side(kAboveNearest, kAboveSum, 1, asked.scale, highest);
        above.count = counts[kAboveCount];
        below = side(kBelowNearest, kBelowSum, -1, asked.scale, lowest);
        excess = above.count - (asked.target - counts[kInfiniteCount]);
        read_nodes(state, asked);
    }

    double at(int64_t rank, int64_t column) const {
        return messages_.number(rank, row_ * columns_ + column);
    }

    // The bracket that the masses at the pivots leave. False if rounding leaves none: the mass is over
    // the target at state->left and under it at a pivot that is no higher. Masses fall, so both are
    // the target but for rounding.
    bool narrow(const Asked& asked, SearchState* state) const {
        const int64_t count = 3 + call_.cuts;
        const double* pivots = call_.pivots + row_ * count;
        const double remaining = asked.target - counts[kInfiniteCount];
        for (int64_t i = 0; i < count; ++i) {
            double above_it = 0, halves = 0;
            for (int64_t rank = 0; rank < call_.ranks; ++rank) {
                above_it += at(rank, kColumns + i);
                halves += at(rank, kColumns + count + i);
            }
            // NaN where a rank does not know it.
            const double surplus = (above_it - remaining) + (asked.is_hard ? 0 : halves);
            if (surplus >= 0) state->left = std::max(state->left, pivots[i]);
            if (surplus < 0) state->right = std::min(state->right, pivots[i]);
        }
        return state->left < state->right;
    }

   private:
    int64_t columns_, row_;
    const SearchCall& call_;
    Messages messages_;

    // The scores on one side of the band, relative to the nearest of all ranks.
    OuterSum side(int nearest, int sum, double sign, double t, double otherwise) const {
        OuterSum out{sign * kInfinity, 0, 0};
        for (int64_t rank = 0; rank < call_.ranks; ++rank)
            out.score = sign * std::min(sign * out.score, sign * at(rank, nearest));
        for (int64_t rank = 0; rank < call_.ranks; ++rank) {
            const double score = at(rank, nearest);
            if (std::isinf(score)) continue;
            out.sum += at(rank, sum) * std::exp(sign * (out.score - score) / t);
        }
        if (std::isinf(out.score)) out.score = otherwise;
        return out;
    }

    void read_nodes(const SearchState& state, const Asked& asked) {
        const bool is_one_number = state.high <= next_number(state.low, call_.dtype);
        for (int64_t rank = 0; rank < call_.ranks; ++rank) {
            const double inside = at(rank, kInsideCount);
            Variation own;
            if (is_one_number) {  // scores that are all equal need no list
                if (inside > 0) lists.add(state.low, inside);
                own.add(state.low);
            } else {
                const NodeWeights weights(inside, call_.size);
                const double* values = messages_.nodes(rank, row_);
                for (int64_t i = 0; i < call_.size && weights.step > 0; ++i) {
                    if (!std::isfinite(values[i])) continue;
                    lists.add(values[i], weights.of(i));
                    own.add(values[i]);
                }
                is_complete &= inside <= double(call_.size);
            }
            lists.end_list();
            // Scores for which others stand are somewhere between the first and the last of them.
            if (inside > double(call_.size)) {
                between += NodeWeights(inside, call_.size).step * own.of(asked);
                spare += own.of(asked);
            }
        }
    }
};

double log_of_share(double part, double tied) {
    return 2 * part > tied ? std::log1p((part - tied) / tied) : std::log(part / tied);
}

struct Answer {
    double fields[kSolved] = {};
    std::vector<double> ties;  // of each rank
};

// A row that counts and ends decide. False if they do not.
bool settle(const SearchCall& call, const Asked& asked, const Seen& seen, Answer* out) {
    const double infinite = seen.counts[kInfiniteCount], valid = seen.counts[kValidCount];
    const double finite = valid - infinite, remaining = asked.budget - infinite;
    const bool is_answerable = asked.budget >= 0 && asked.budget <= valid && asked.is_usable &&
                               seen.counts[kNanCount] == 0;
    // More +inf scores than budget share it.
    const bool is_shared = asked.is_hard ? asked.target - infinite <= 0 : remaining < 0;
    const bool is_whole = remaining == finite;
    const bool is_soft_end = !asked.is_hard && (remaining == 0 || is_whole);
    double* to = out->fields;
    to[kValid] = valid;
    to[kHasNan] = seen.counts[kNanCount] > 0;
    if (is_answerable && !is_shared && !is_soft_end && finite != 0) return false;
    const double edge =
        asked.is_hard ? 0 : std::min(kSaturation * asked.temperature, Asked::largest(call) / 2);
    to[kHi] = is_whole ? seen.lowest : seen.highest;
    to[kLo] = finite == 0 ? 0 : is_whole ? -edge : edge;
    const double tied = std::max(infinite, 1.0);
    if (is_shared) {
        to[kHi] = kInfinity;
        to[kLo] = asked.budget / tied;
        to[kWantedTies] = asked.budget;
        for (int64_t rank = 0; rank < call.ranks; ++rank)
            out->ties[size_t(rank)] = seen.at(rank, kInfiniteCount);
    }
    if (!is_answerable) to[kHi] = to[kLo] = kNaN;
    to[kLogShare] = log_of_share(asked.budget, tied);
    to[kIsUsedUp] = remaining == 0;
    return true;
}

// In the hard limit: the first score up to which there are as many as its rank says.
void find_boundary(const SearchCall& call, const Asked& asked, const Seen& seen,
                   const NodeCurve& curve, Answer* out) {
    const size_t count = curve.surplus.size();
    size_t place = 0;
    while (place < count && seen.excess + curve.passed[place + 1] < 0) ++place;
    // Without nodes it is the score below them.
    const double boundary = curve.values[count > 0 ? std::min(place, count - 1) + 1 : 1];
    double over = seen.above.count + seen.counts[kInfiniteCount], tied = 0;
    for (int64_t rank = 0; rank < call.ranks; ++rank) {
        double ties = 0;
        for (const Node* node = seen.lists.begin(size_t(rank));
             node != seen.lists.end(size_t(rank)); ++node) {
            over += node->value > boundary ? node->weight : 0;
            ties += node->value == boundary ? node->weight : 0;
        }
        out->ties[size_t(rank)] = ties;
        tied += ties;
    }
    const double part = asked.budget - over;
    tied = std::max(tied, 1.0);
    out->fields[kHi] = boundary;
    out->fields[kLo] = part / tied;
    out->fields[kLogShare] = log_of_share(part, tied);
    out->fields[kWantedTies] = part;
}

// The threshold of a row that these measurements decide, or where the search goes on.
void advance_row(const SearchCall& call, int64_t row) {
    const Asked asked(call, row);
    SearchState state = SearchState::read(call, row);
    const Seen seen(call, row, state, asked);
    Answer answer;
    answer.ties.resize(size_t(call.ranks));
    const double low = state.low, high = state.high;
    // All of the bracket is measured after a band that was missed.
    const bool was_missed = low <= state.left && high >= state.right;
    const bool is_bracketed = seen.narrow(asked, &state);
    bool is_solved = settle(call, asked, seen, &answer);
    if (!is_solved && !is_bracketed) {
        answer.fields[kHi] = state.left;
        answer.fields[kLo] = 0;
        is_solved = true;
    } else if (!is_solved) {
        const NodeCurve curve(seen.lists.merged(), seen.above, seen.below,
                              asked.target - seen.counts[kInfiniteCount], asked.scale);
        is_solved = seen.is_complete && state.left >= low && state.right <= high;
        if (is_solved && asked.is_hard) {
            find_boundary(call, asked, seen, curve, &answer);
        } else if (is_solved) {
            const auto [place, offset] = curve.root(seen.excess, asked.scale);
            const Threshold found = call.dtype == kFloat64 ? as_pair<double>(place, offset)
                                                           : as_pair<float>(place, offset);
            answer.fields[kHi] = found.hi;
            answer.fields[kLo] = found.lo;
        } else {
            const double less = (was_missed ? kAtMost : kUncertain) * seen.between + seen.spare;
            state.place_band(curve, seen.excess, asked, seen.between + seen.spare, less,
                             call.dtype);
        }
    }
    state.write(call, row, !is_solved);
    if (!is_solved) return;
    for (int field = 0; field < kSolved; ++field)
        call.solved[field * call.rows + row] = answer.fields[field];
    for (int64_t rank = 0; rank < call.ranks; ++rank)
        call.ties[rank * call.rows + row] = answer.ties[size_t(rank)];
}

// All rows of a call; returns how many are still open.
template <class Work>
int64_t each_open_row(const SearchCall& call, Work work) {
    // A row costs some microseconds for each thousand nodes, and its bits are its own.
    const bool is_long = call.rows * call.ranks * call.size >= kParallelScores / 4;
    const bool side_by_side = call.rows > 1 && is_long && !g_is_forked && g_lateness.is_over();
    const int64_t share = std::max<int64_t>(1, call.rows / (8 * call.threads));
    for_each(call.rows, side_by_side ? int(call.threads) : 1, share, [&](int64_t row) {
        if (call.is_open[row]) work(call, row);
    });
    return std::count_if(call.is_open, call.is_open + call.rows, [](uint8_t x) { return x != 0; });
}

}  // namespace
