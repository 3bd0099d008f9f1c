// Ranks and thresholds of one sorted row, and their gradients, by scans.
//
//   M_i = sum_j F((s_i - s_j) / t) = i + 1/2 + (U_i - L_i) / 2 at a score, and between two of them,
//   m = c - A / 2 + B / 2 with A = L_{c-1} e^{-(b - s_{c-1})/t}, B = U_c e^{-(s_c - b)/t}
//
// where L and U are decayed sums over the scores at and below, and at and above. Between -inf and
// +inf every number has the mass c: b is 0 there.

#pragma once

#include <memory>

#include "scan.hpp"
#include "short_rows.hpp"

namespace {

// Memory for a row's numbers.
template <class T = double>
std::unique_ptr<T[]> numbers(int64_t n) {
    constexpr int64_t kAsk = 4 << 20;
    std::unique_ptr<T[]> made(new T[size_t(n)]);
    const auto bytes = n * int64_t(sizeof(T));
    if (bytes >= kAsk) ask_for_large_pages(made.get(), bytes);
    return made;
}

// A sorted row and where its scores were. NaN comes last.
template <class T>
struct SortedRow {
    const T* s;
    const int64_t* order;
    int64_t n;
    double t;
    bool is_masked;  // NaN is left out, and a row that has one on top of that is all NaN

    bool has_answer() const {
        constexpr double kMax = double(std::numeric_limits<T>::max()) / kHottest;
        return t >= 0 && t <= kMax && !std::isnan(s[is_masked ? 0 : n - 1]);
    }
    bool is_hard() const { return t < double(std::numeric_limits<T>::min()); }
    int64_t valid() const {
        int64_t count = n;
        while (count > 0 && std::isnan(s[count - 1])) --count;
        return count;
    }
    void fill(int64_t from, T value, T* out) const {
        for (int64_t i = from; i < n; ++i) out[order[i]] = value;
    }
};

template <class T>
void rank_row(const SortedRow<T>& row, T* out) {
    if (!row.has_answer()) return row.fill(0, T(kNaN), out);
    const int64_t valid = row.valid();
    const double scale = decay_scale<T>(row.t);
    const auto below = numbers(valid);
    sums_below(row.s, valid, scale, below.get());
    each_group_down(
        row.s, valid, scale,
        [&](int64_t first, int64_t end, double above) {
            const double counted = double(first) + 0.5 * double(end - first) + 0.5;
            const T rank = T(counted + 0.5 * (above - below[first]));
            for (int64_t i = first; i < end; ++i) out[row.order[i]] = rank;
        },
        [](int64_t, double) {});
    row.fill(valid, T(kNaN), out);
}

// (1 / t) sum_j phi_ij (g_i - g_j) = (g_i (L_i + U_i) - sums of decayed g on both sides) / 2t
template <class T>
void rank_gradient_row(const SortedRow<T>& row, const T* grad, T* out) {
    if (!row.has_answer()) return row.fill(0, T(kNaN), out);
    if (row.is_hard()) return row.fill(0, T(0), out);
    const int64_t valid = row.valid();
    const double scale = decay_scale<T>(row.t), factor = 0.5 / row.t;
    const auto found = numbers(valid);
    const auto g = numbers<T>(valid);
    for (int64_t i = 0; i < valid; ++i)
        g[i] = std::isfinite(row.s[i]) ? grad[row.order[i]] : T(0);
    double ones = 1, sum = double(g[0]);
    found[0] = 0;
    scan_up(row.s, valid, scale, [&](int64_t i, double e) {
        ones = fused(e, ones, 1.0);
        sum = fused(e, sum, double(g[i]));
        found[i] = double(g[i]) * ones - sum;
    });
    const auto write = [&](int64_t i, double of_both) {
        out[row.order[i]] = std::isfinite(row.s[i]) ? narrowed<T>(of_both * factor) : T(0);
    };
    ones = 1, sum = double(g[valid - 1]);
    write(valid - 1, found[valid - 1]);
    scan_down(row.s, valid, scale, [&](int64_t i, double e) {
        ones = fused(e, ones, 1.0);
        sum = fused(e, sum, double(g[i]));
        write(i, found[i] + (double(g[i]) * ones - sum));
    });
    row.fill(valid, T(0), out);
}

// What a threshold is, and how it moves with the scores next to it.
template <class T>
struct Thresholds {
    T* b;
    int32_t* count;
    T *low, *up;
};

// Thresholds that wait to be solved together: each lies between two neighbouring scores. Their sums
// are relative to themselves, and 0 where a side is empty; `decay` is that from one to the other.
struct Intervals {
    static constexpr int kMost = 256;
    int size = 0;
    int64_t place[kMost], count[kMost];
    alignas(64) double excess[kMost];  // of the scores below over the mass
    alignas(64) double low_sum[kMost], up_sum[kMost], decay[kMost], low[kMost], up[kMost];
    alignas(64) double b[kMost], low_part[kMost], up_part[kMost];
};

LAPSUM_CLONES void solve_intervals(Intervals& at, double t) {
    const int size = at.size;
#pragma omp simd
    for (int i = 0; i < size; ++i) {
        const double excess = at.excess[i], low_sum = at.low_sum[i], up_sum = at.up_sum[i];
        const bool is_even = excess == 0, is_low = excess > 0;
        const double apart = is_even ? 1.0 : std::abs(excess);
        const double coupling = low_sum * up_sum * at.decay[i];
        // Next to an empty side, where the mass may be tiny, nothing is squared.
        const double root = coupling > 0 ? std::sqrt(apart * apart + coupling) : apart;
        const double nearer = root + apart;
        const double offset = t * log_vectorised(is_even  ? low_sum / up_sum
                                                 : is_low ? low_sum / nearer
                                                          : up_sum / nearer);
        const bool is_open = at.low[i] == -kInfinity && at.up[i] == kInfinity;
        const double middle = is_open ? 0.0 : at.low[i] * 0.5 + at.up[i] * 0.5 + offset * 0.5;
        const double b = is_even ? middle : is_low ? at.low[i] + offset : at.up[i] - offset;
        const double half = 0.5 / root, major = nearer * half, minor = coupling / nearer * half;
        const double even_share = is_open ? 0.0 : 0.5;
        const double low_share = is_even ? even_share : is_low ? major : minor;
        const double up_share = is_even ? even_share : is_low ? minor : major;
        const bool is_moved = std::abs(b) < kInfinity;
        at.b[i] = b;
        at.low_part[i] = is_moved && low_sum > 0 ? low_share / low_sum : 0.0;
        at.up_part[i] = is_moved && up_sum > 0 ? up_share / up_sum : 0.0;
    }
}

template <class T>
void place_thresholds(Intervals& at, double t, const Thresholds<T>& out) {
    solve_intervals(at, t);
    for (int i = 0; i < at.size; ++i) {
        const int64_t j = at.place[i];
        out.b[j] = narrowed<T>(at.b[i]);
        out.count[j] = int32_t(at.count[i]);
        out.low[j] = T(at.low_part[i]);
        out.up[j] = T(at.up_part[i]);
    }
    at.size = 0;
}

// The thresholds at `m` masses: 1/2, 3/2, ... without them, else those that `ascending` puts in order;
// places that are left out of it have none.
template <class T>
void threshold_row(const SortedRow<T>& row, const double* masses, const int64_t* ascending,
                   int64_t m, const Thresholds<T>& out) {
    if (!row.has_answer()) {
        for (int64_t j = 0; j < m; ++j) {
            out.b[j] = T(kNaN);
            out.low[j] = out.up[j] = T(0);
            out.count[j] = 0;
        }
        return;
    }
    const int64_t n = row.n;
    const double scale = decay_scale<T>(row.t), t = row.is_hard() ? 0 : row.t;
    const auto below = numbers(n);
    sums_below(row.s, n, scale, below.get());
    Intervals waiting;
    int64_t left = m;
    double up_sum = 0, up = kNaN, decay = 0;
    const auto place = [&](int64_t count, double low_sum, double low, double from) {
        for (; left > 0; --left) {
            const int64_t j = ascending == nullptr ? left - 1 : ascending[left - 1];
            const double mass = masses == nullptr ? double(j) + 0.5 : masses[j];
            if (mass <= from) return;
            const int i = waiting.size++;
            waiting.place[i] = j;
            waiting.count[i] = count;
            waiting.excess[i] = double(count) - mass;
            waiting.low_sum[i] = low_sum;
            waiting.up_sum[i] = up_sum;
            waiting.decay[i] = decay;
            waiting.low[i] = low;
            waiting.up[i] = up;
            if (waiting.size == Intervals::kMost) place_thresholds(waiting, t, out);
        }
    };
    each_group_down(
        row.s, n, scale,
        [&](int64_t first, int64_t end, double above) {
            const double tied = double(end - first);
            const double mass = double(first) + 0.5 * tied + 0.5 * (above - below[first]);
            place(end, below[first] + tied, double(row.s[first]), mass);
            up_sum = above + tied;
            up = double(row.s[first]);
        },
        [&](int64_t, double e) { decay = e; });
    decay = 0;
    place(0, 0, kNaN, -kInfinity);
    place_thresholds(waiting, t, out);
}

// sum_j g_j db_j / dr_i: from the scores next to the thresholds, down and up.
template <class T>
void threshold_gradient_row(const SortedRow<T>& row, const T* grad, int64_t m,
                            const Thresholds<T>& at, T* out) {
    if (!row.has_answer()) return row.fill(0, T(kNaN), out);
    const int64_t n = row.n;
    const double scale = decay_scale<T>(row.t);
    const auto lower = numbers(n), upper = numbers(n);
    std::fill_n(lower.get(), n, 0.0);
    std::fill_n(upper.get(), n, 0.0);
    for (int64_t j = 0; j < m; ++j) {
        const int64_t count = at.count[j];
        lower[std::max<int64_t>(count - 1, 0)] += double(grad[j]) * double(at.low[j]);
        upper[std::min(count, n - 1)] += double(grad[j]) * double(at.up[j]);
    }
    scan_up(row.s, n, scale,
            [&](int64_t i, double e) { upper[i] = fused(e, upper[i - 1], upper[i]); });
    double sum = lower[n - 1];
    out[row.order[n - 1]] = narrowed<T>(upper[n - 1] + sum);
    scan_down(row.s, n, scale, [&](int64_t i, double e) {
        sum = fused(e, sum, lower[i]);
        out[row.order[i]] = narrowed<T>(upper[i] + sum);
    });
}

}  // namespace
