// From a threshold to the mask, the hard mask and the gradients.

#pragma once

#include "solve.hpp"

namespace {

template <class T>
void fill(const Row<T>& row, const Strided& out, T value) {
    row.each_block([&](int64_t, int64_t first, int64_t count) {
        alignas(64) T buffer[kChunk];
        for (int64_t at = first; at < first + count; at += kChunk) {
            const int64_t length = std::min(kChunk, first + count - at);
            T* target = write_target(out, at, buffer);
            std::fill(target, target + length, value);
            write_chunk(out, at, length, target);
        }
    });
}

// Each chunk of scores through `chunk(scores, count, target)` into the output.
template <class T, class Chunk>
void write_row(const Row<T>& row, const Strided& out, Chunk chunk) {
    row.each_block([&](int64_t, int64_t first, int64_t count) {
        alignas(64) T scores[kChunk];
        alignas(64) T values[kChunk];
        for (int64_t at = first; at < first + count; at += kChunk) {
            const int64_t length = std::min(kChunk, first + count - at);
            T* target = write_target(out, at, values);
            chunk(row.read(at, length, scores), length, target);
            write_chunk(out, at, length, target);
        }
    });
}

template <class T>
void write_mask(const Row<T>& row, const Threshold& threshold, double t, const Strided& out) {
    if (std::isnan(threshold.hi)) {
        fill(row, out, std::numeric_limits<T>::quiet_NaN());
    } else if (threshold.is_hard) {
        const T boundary = T(threshold.hi), share = T(threshold.lo);
        write_row(row, out, [=](const T* r, int64_t n, T* p) {
            limit_chunk(r, n, boundary, share, p);
        });
    } else {
        const Scale<T> scale(threshold.hi, threshold.lo, t);
        const bool exact = threshold.exact_mask;
        write_row(row, out, [=](const T* r, int64_t n, T* p) {
            exact ? exact_mask_chunk(r, n, scale, p) : mask_chunk(r, n, scale, p);
        });
    }
}

// Exactly k ones, the earliest of the tied scores first.
template <class T>
void write_hard_mask(const Row<T>& row, const Boundary& boundary, double k, const Strided& out) {
    if (k == 0) return fill(row, out, T(0));
    int64_t left = int64_t(k) - boundary.above;
    const T score = T(boundary.score);
    if (left == boundary.tied) {
        return write_row(
            row, out, [=](const T* r, int64_t n, T* p) { limit_chunk(r, n, score, T(1), p); });
    }
    Row<T> serial = row;  // some of the tied scores are left over: they are counted off in order
    serial.threads = 1;
    write_row(serial, out, [&](const T* r, int64_t n, T* p) {
        const int64_t tied = count_equal(r, n, score);
        const bool is_divided = left > 0 && left < tied;
        limit_chunk(r, n, score, T(left > 0 && !is_divided), p);
        for (int64_t i = 0; is_divided && left > 0; ++i) {
            if (r[i] != score) continue;
            p[i] = T(1);
            --left;
        }
        left -= is_divided ? 0 : std::min(left, tied);
    });
}

struct RowGradient {
    double budget = 0, temperature = 0;
};

template <class T>
RowGradient write_gradient(Row<T>& row, const Strided& grad, const Threshold& threshold, double t,
                           const Strided& out) {
    if (std::isnan(threshold.hi)) {
        fill(row, out, std::numeric_limits<T>::quiet_NaN());
        return {kNaN, kNaN};
    }
    if (threshold.is_hard || row.n == 0) {
        fill(row, out, T(0));
        return {};
    }
    const Scale<T> scale(threshold.hi, threshold.lo, t);
    const auto sums_at = [&](const Scale<T>& at) {
        return row.template reduce<GradientSums>([&](int64_t first, const T* r, int64_t n) {
            alignas(64) T buffer[kChunk];
            return gradient_sums_chunk(r, read_chunk(grad, first, n, buffer), n, at);
        });
    };
    GradientSums sums = sums_at(scale);
    double shift = 0;  // e is e^shift times what it would be
    if (!(sums.e >= 0x1p-60)) {
        // All of phi has underflowed, yet q has not: sum relative to the nearest score on either
        // side. What lies on the other side of so wide a gap vanishes by itself.
        const Pass seen = row.pass(scale.hi, scale.inverse);
        const double b = threshold.hi, lo = threshold.lo;  // halved: distances may overflow
        const double below = seen.at > 0 && lo >= 0 ? b : seen.nearest_below;
        const double above = seen.at > 0 && lo < 0 ? b : seen.nearest_above;
        const double u_below = ((b / 2 - below / 2) + lo / 2) / t * 2;
        const double u_above = ((above / 2 - b / 2) - lo / 2) / t * 2;
        shift = std::min(u_below, u_above);
        if (!(shift < kInfinity)) {  // no score takes part
            fill(row, out, T(0));
            return {};
        }
        sums = {};
        const auto add_side = [&](double end, double u, double sign) {
            const double weight = std::exp(shift - u);
            if (!(weight > 0)) return;
            const GradientSums side = sums_at(Scale<T>(end, 0, t));
            const double v = std::exp(-shift) > 0 ? sign * u * kLog2E : 0;  // no phi, no use for it
            sums.add({weight * side.e, weight * side.ge, weight * (side.ue + v * side.e),
                      weight * (side.gue + v * side.ge)});
        };
        add_side(below, u_below, -1);
        add_side(above, u_above, 1);
    }
    const double mean = sums.ge / sums.e, mean_v = sums.ue / sums.e;
    RowGradient out_row;
    out_row.budget = mean;
    out_row.temperature = -0.5 * std::exp(-shift) * kLn2 * (sums.gue - mean_v * sums.ge) / t;
    const double sign = row.largest ? 1 : -1;
    const T factor = T(sign * 0.5 / t), mean_grad = T(mean);
    row.each_block([&](int64_t, int64_t first, int64_t count) {
        alignas(64) T scores[kChunk];
        alignas(64) T grads[kChunk];
        alignas(64) T values[kChunk];
        for (int64_t at = first; at < first + count; at += kChunk) {
            const int64_t n = std::min(kChunk, first + count - at);
            T* target = write_target(out, at, values);
            gradient_chunk(row.read(at, n, scores), read_chunk(grad, at, n, grads), n, scale,
                           factor, mean_grad, target);
            write_chunk(out, at, n, target);
        }
    });
    return out_row;
}

}  // namespace
