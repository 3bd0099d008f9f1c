// Where the search for the threshold of a row is that is spread over many ranks, and what ranks have
// told each other of it.

#pragma once

#include <optional>

#include "shard_curve.hpp"
#include "shard_measure.hpp"

// Laid out as shard_steps.py packs it. Rows are contiguous in all that has one number of each.
struct SearchCall {
    int64_t dtype, rows, ranks, size, cuts;  // size: nodes of each row and rank
    const char* gathered;                    // the messages of all ranks
    int64_t stride;                          // from one to the next, in bytes
    const double *budget, *temperature;
    double* state;     // left, right, low, high, [4, rows]
    uint8_t* is_open;  // [rows]
    double* pivots;    // [rows, 3 + cuts]
    double* solved;    // [kSolved, rows], see shard_search.hpp
    double* ties;      // [ranks, rows]
    int64_t threads;
};

namespace {

// The place of a number among all of its dtype.
int64_t order_of(double value, int64_t dtype) {
    int64_t bits, least;
    if (dtype == kFloat64) {
        bits = bits_as<int64_t>(value);
        least = std::numeric_limits<int64_t>::min();
    } else if (dtype == kFloat32) {
        bits = bits_as<int32_t>(float(value));
        least = std::numeric_limits<int32_t>::min();
    } else {
        const auto narrow = dtype == kFloat16 ? float_to_half : float_to_bfloat;
        bits = bits_as<int16_t>(narrow(float(value)));
        least = std::numeric_limits<int16_t>::min();
    }
    return bits < 0 ? least - bits : bits;
}

double at_order(int64_t order, int64_t dtype) {
    if (dtype == kFloat64)
        return bits_as<double>(order < 0 ? std::numeric_limits<int64_t>::min() - order : order);
    if (dtype == kFloat32) {
        const int64_t bits = order < 0 ? std::numeric_limits<int32_t>::min() - order : order;
        return double(bits_as<float>(int32_t(bits)));
    }
    const int64_t bits = order < 0 ? std::numeric_limits<int16_t>::min() - order : order;
    const auto wide = dtype == kFloat16 ? half_to_float : bfloat_to_float;
    return double(wide(uint16_t(int16_t(bits))));
}

double next_number(double value, int64_t dtype) {
    return value < kInfinity ? at_order(order_of(value, dtype) + 1, dtype) : value;
}

// Numbers that cut [left, right) into parts of as many numbers each.
void cut_evenly(double left, double right, int64_t count, int64_t dtype, double* out) {
    constexpr int64_t kExact = int64_t(1) << 52;
    const int64_t below = order_of(left, dtype), above = order_of(right, dtype);
    // The difference may be over the largest integer, half of it is not.
    const int64_t half = (above >> 1) - (below >> 1);
    for (int64_t i = 1; i <= count; ++i) {
        const int64_t step = half > kExact ? half / (count + 1) * 2 * i
                                           : (above - below) * i / (count + 1);
        out[i - 1] = at_order(below + step, dtype);
    }
}

// What is asked of a row.
struct Asked {
    double budget, temperature;
    bool is_hard, is_usable;  // in the hard limit, where it is searched by counts; a temperature
    double scale;             // a temperature that can be divided by
    double target;            // the mass, or in the hard limit the rank, that is looked for

    Asked(const SearchCall& call, int64_t row)
        : budget(call.budget[row]), temperature(call.temperature[row]) {
        const bool is_wide = call.dtype == kFloat64;
        const double tiny = is_wide ? std::numeric_limits<double>::min()
                                    : double(std::numeric_limits<float>::min());
        is_hard = temperature < tiny;
        is_usable = temperature >= 0 && temperature <= largest(call) / kHottest;
        scale = is_wide ? divisible_temperature<double>(temperature)
                        : divisible_temperature<float>(temperature);
        target = is_hard ? std::max(std::ceil(budget), 1.0) : budget;
        if (std::isnan(budget)) target = 0.5;
    }

    static double largest(const SearchCall& call) {
        return call.dtype == kFloat64 ? std::numeric_limits<double>::max()
                                      : double(std::numeric_limits<float>::max());
    }
};

// The threshold is in [left, right), presumably in [low, high).
struct SearchState {
    double left, right, low, high;

    static SearchState read(const SearchCall& call, int64_t row) {
        const double* at = call.state + row;
        return {at[0], at[call.rows], at[2 * call.rows], at[3 * call.rows]};
    }

    void write(const SearchCall& call, int64_t row, bool is_open) const {
        double* to = call.state + row;
        to[0] = left;
        to[call.rows] = right;
        to[2 * call.rows] = is_open ? low : 0;  // rows that are done have an empty band
        to[3 * call.rows] = is_open ? high : 0;
        call.is_open[row] = is_open;
        double* pivots = call.pivots + row * (3 + call.cuts);
        pivots[0] = to[2 * call.rows];
        pivots[1] = next_number(pivots[0], call.dtype);
        pivots[2] = to[3 * call.rows];
        cut_evenly(left, right, call.cuts, call.dtype, pivots + 3);
    }

    // The numbers on either side of the threshold whose masses differ from the target by the margin:
    // nodes, or where the curve is known between them any numbers, by `less`.
    void place_band(const NodeCurve& curve, double excess, const Asked& asked, double margin,
                    double less, int64_t dtype) {
        const size_t count = curve.surplus.size();
        size_t beyond = 0, not_below = 0;
        for (size_t i = 0; i < count; ++i) {
            const double surplus = asked.is_hard ? curve.passed[i + 1] + excess : curve.surplus[i];
            beyond += surplus < -margin;
            not_below += surplus < margin;
        }
        const double* nodes = curve.values.data() + 1;
        high = beyond > 0 ? nodes[beyond - 1] : right;
        low = not_below < count ? nodes[not_below] : left;
        if (const auto known = crossing(curve, excess, asked, less))
            low = -at_or_above(-*known, dtype);
        if (const auto known = crossing(curve, excess, asked, -less))
            high = at_or_above(*known, dtype);
        // A band beside the bracket says nothing.
        const bool is_beside = low >= right || high < left || (high == left && low < high);
        high = std::min(high, right);
        low = std::max(low, left);
        // Both ends are one score where many are tied: the threshold is there, or next to it.
        if (!(low < high)) high = next_number(low, dtype);
        if (!(high <= right) || is_beside) {
            low = left;
            high = right;
        }
    }

   private:
    // Where the curve differs from the target by a margin, if it is known there: in a soft row whose
    // nodes around are less than a temperature apart, so that the mass varies evenly. Without a
    // margin the nodes are all the scores there are.
    static std::optional<double> crossing(const NodeCurve& curve, double excess, const Asked& asked,
                                          double margin) {
        if (asked.is_hard || !(margin != 0)) return std::nullopt;
        const size_t count = curve.surplus.size();
        const auto at = std::upper_bound(curve.surplus.begin(), curve.surplus.end(), margin);
        const auto place = size_t(at - curve.surplus.begin());
        if (place == 0 || place == count) return std::nullopt;
        const double* nodes = curve.values.data() + 1;
        if (!(nodes[place - 1] / 2 - nodes[place] / 2 < asked.scale / 2)) return std::nullopt;
        const auto [hi, lo] = curve.root(excess, asked.scale, margin);
        return hi + lo;
    }

    // The least number of a dtype that is not below.
    static double at_or_above(double value, int64_t dtype) {
        const double nearest = at_order(order_of(value, dtype), dtype);
        return nearest < value ? next_number(nearest, dtype) : nearest;
    }
};

// What the scores of a rank, for which others stand, add to the uncertainty of the mass: sigma of
// scores within a distance of each other differs most for a threshold in the middle of them.
struct Variation {
    double lowest = kInfinity, highest = -kInfinity;

    void add(double value) {
        lowest = std::min(lowest, value);
        highest = std::max(highest, value);
    }
    double of(const Asked& asked) const {
        if (asked.is_hard) return 1;
        const double width = highest >= lowest ? highest / 2 - lowest / 2 : 0;
        return -std::expm1(-width / asked.scale);
    }
};

double finite_or_zero(double value) { return std::isfinite(value) ? value : 0; }

// Numbers before a sample, as in backends/shards.py.
enum Header { kLength, kDrawn, kDtype, kRows, kBudgets, kTemperatures, kHeader };

// Numbers in the messages of ranks, which need not lie where numbers do.
class Messages {
   public:
    Messages(const SearchCall& call, int64_t numbers)
        : call_(call), nodes_at_(8 * numbers), scores_(size_t(call.size)) {}

    double number(int64_t rank, int64_t place) const {
        double out;
        std::memcpy(&out, call_.gathered + rank * call_.stride + 8 * place, sizeof out);
        return out;
    }

    // The nodes of a row and rank, as doubles.
    const double* nodes(int64_t rank, int64_t row) {
        const int64_t bytes = call_.size * width(call_.dtype);
        std::vector<double>& raw = raw_;
        raw.resize(size_t(bytes + 7) / 8);
        std::memcpy(raw.data(), call_.gathered + rank * call_.stride + nodes_at_ + row * bytes,
                    size_t(bytes));
        const Strided from{reinterpret_cast<char*>(raw.data()), 1, call_.dtype, nullptr};
        return read_chunk(from, 0, call_.size, scores_.data());
    }

   private:
    const SearchCall& call_;
    int64_t nodes_at_;
    std::vector<double> raw_, scores_;
};

}  // namespace
