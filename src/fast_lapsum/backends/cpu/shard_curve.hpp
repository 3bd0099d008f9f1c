// The scores that all ranks have sent of a row, and the budget curve at them. One thread, and one
// order of all sums: every rank has the same numbers, and has to make the same bits of them.

#pragma once

#include <algorithm>
#include <vector>

#include "iterate.hpp"
#include "scan.hpp"

namespace {

// A score that stands for `weight` scores.
struct Node {
    double value, weight;
};

// How many of `count` scores each of `size` nodes stands for. For itself alone where they are few.
// Else there is a node at either end and others evenly in between: each has half of the scores
// between it and its neighbours.
struct NodeWeights {
    double step;
    int64_t last;

    NodeWeights(double count, int64_t size)
        : step(std::max((count - 1) / double(size - 1), 1.0) * (count > 0)), last(size - 1) {}

    double of(int64_t node) const {
        return (node == 0 || node == last) && step > 0 ? step / 2 + 0.5 : step;
    }
};

// Several lists, each of which descends as a rule, as one that does.
class NodeLists {
   public:
    void add(double value, double weight) { nodes_.push_back({value, weight}); }
    void end_list() { ends_.push_back(nodes_.size()); }

    // What was added to a list, in that order.
    const Node* begin(size_t list) const { return nodes_.data() + (list ? ends_[list - 1] : 0); }
    const Node* end(size_t list) const { return nodes_.data() + ends_[list]; }

    std::vector<Node> merged() const {
        const auto descends = [](const Node& a, const Node& b) { return a.value > b.value; };
        // Not a plain copy, which would ask for a newer libstdc++ than packaging/manylinux_symbols.py allows.
        std::vector<Node> nodes(nodes_.begin(), nodes_.end());
        std::vector<size_t> ends{0};
        ends.insert(ends.end(), ends_.begin(), ends_.end());
        const auto at = [&](size_t i) { return nodes.begin() + int64_t(ends[i]); };
        const size_t lists = ends_.size();
        for (size_t i = 0; i < lists; ++i) {
            if (!std::is_sorted(at(i), at(i + 1), descends))
                std::stable_sort(at(i), at(i + 1), descends);
        }
        for (size_t step = 1; step < lists; step *= 2) {
            for (size_t i = 0; i + step < lists; i += 2 * step)
                std::inplace_merge(at(i), at(i + step), at(std::min(i + 2 * step, lists)), descends);
        }
        return nodes;
    }

   private:
    std::vector<Node> nodes_;
    std::vector<size_t> ends_;
};

// All scores on one side of the nodes: sum e^{-|r - score|/t}, and how many there are. With the sum
// 0 the score is any at or beyond the outermost node.
struct OuterSum {
    double score, sum, count;
};

// e^{-(distance between two places)/t}, for `count` pairs of them; the places descend.
template <class First, class Second>
void decays_between(int64_t count, double t, First first, Second second, double* out) {
    double gaps[kDecays];
    for (int64_t at = 0; at < count; at += kDecays) {
        const int64_t n = std::min(kDecays, count - at);
        // By halves: the distance itself may be over the largest number.
        for (int64_t i = 0; i < n; ++i) gaps[i] = (first(at + i) / 2 - second(at + i) / 2) / t * 2;
        given_decays_chunk(gaps, n, out + at);
    }
}

// The budget curve at nodes in descending order, with one more node for the scores on either side.
struct NodeCurve {
    std::vector<double> values, upper, lower;  // nodes, and sums of those at or above, at or below
    std::vector<double> passed;                // the weight of the first i nodes
    std::vector<double> surplus;               // of the curve over the target, at node i

    NodeCurve(const std::vector<Node>& nodes, const OuterSum& above, const OuterSum& below,
              double target, double t) {
        const size_t count = nodes.size();
        values.resize(count + 2);
        std::vector<double> weights(count + 2);
        passed.resize(count + 1);
        values[0] = above.score;
        weights[0] = above.sum;
        for (size_t i = 0; i < count; ++i) {
            values[i + 1] = nodes[i].value;
            weights[i + 1] = nodes[i].weight;
            passed[i + 1] = passed[i] + nodes[i].weight;
        }
        values[count + 1] = below.score;
        weights[count + 1] = below.sum;
        add_up(weights, t);
        surplus.resize(count);
        for (size_t i = 0; i < count; ++i) {
            // What lies above node i is worth its count; node i is worth half of its own weight,
            // and stands in both sums.
            const double counted = (above.count - target) + passed[i] + nodes[i].weight / 2;
            surplus[i] = counted + (lower[i + 1] - upper[i + 1]) / 2;
        }
    }

    // The threshold where the curve is so much over its target: a place, and what is to be added to
    // it. `excess` is the count above all nodes, less the target.
    std::pair<double, double> root(double excess, double t, double margin = 0) const {
        // It is at or below every node whose surplus is not over that.
        const auto at = std::upper_bound(surplus.begin(), surplus.end(), margin) - surplus.begin();
        const auto i = size_t(at);
        const double half_gap = values[i] / 2 - values[i + 1] / 2;
        const double sum_above = upper[i], sum_below = lower[i + 1];
        const double over = (excess - margin) + passed[i];
        // Half the exponent under the root, and hypot: neither square may underflow on its own.
        const double coupling =
            std::sqrt(sum_above) * std::sqrt(sum_below) * std::exp(-half_gap / t);
        const double hypotenuse = std::hypot(over, coupling);
        if (over > 0) return {values[i], -t * log_quotient(sum_above, hypotenuse + over)};
        if (over < 0) return {values[i + 1], t * log_quotient(sum_below, hypotenuse - over)};
        const double aside = t * std::log(sum_above / sum_below) / 2;
        if (aside > 0) return {values[i + 1], half_gap - aside};
        return {values[i], -half_gap - aside};
    }

   private:
    // sum_j weight_j e^{-|r_j - r_i|/t} over j <= i and over j >= i. Blocks are added up by
    // themselves, and the sum before a block decays straight to each node: the rounding of a
    // thousand decays near 1 in a row would add up.
    void add_up(const std::vector<double>& weights, double t) {
        const auto count = int64_t(weights.size());
        const int64_t block = std::max<int64_t>(16, int64_t(std::sqrt(double(count))));
        const double* r = values.data();
        std::vector<double> decays(static_cast<size_t>(count));
        // Not by `=`: see NodeLists::merged().
        upper.assign(weights.begin(), weights.end());
        lower.assign(weights.begin(), weights.end());
        decays_between(count - 1, t, [=](int64_t i) { return r[i]; },
                       [=](int64_t i) { return r[i + 1]; }, decays.data());
        for (int64_t i = 1; i < count; ++i)
            if (i % block != 0) upper[size_t(i)] += decays[size_t(i - 1)] * upper[size_t(i - 1)];
        for (int64_t i = count - 1; i-- > 0;)
            if ((i + 1) % block != 0) lower[size_t(i)] += decays[size_t(i)] * lower[size_t(i + 1)];
        for (int64_t first = block; first < count; first += block) {
            const int64_t size = std::min(block, count - first);
            const double from = r[first - 1], sum = upper[size_t(first - 1)];
            decays_between(size, t, [=](int64_t) { return from; },
                           [=](int64_t i) { return r[first + i]; }, decays.data());
            for (int64_t i = 0; i < size; ++i) upper[size_t(first + i)] += decays[size_t(i)] * sum;
        }
        for (int64_t first = (count - 1) / block * block - block; first >= 0; first -= block) {
            const double to = r[first + block], sum = lower[size_t(first + block)];
            decays_between(block, t, [=](int64_t i) { return r[first + i]; },
                           [=](int64_t) { return to; }, decays.data());
            for (int64_t i = 0; i < block; ++i) lower[size_t(first + i)] += decays[size_t(i)] * sum;
        }
    }
};

}  // namespace
