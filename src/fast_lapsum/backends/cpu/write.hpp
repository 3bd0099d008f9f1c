// From a threshold to the mask, the hard mask, and the gradients of the mask and the threshold.

#pragma once

#include "density.hpp"

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

// The gradient of <g, p>: phi / t (g - <g, q>) for scores. sums_at(scale) gives its sums, and
// write(scale, factor, mean) writes it with factor = 1 / (2 t) and mean = <g, q>.
template <class T, class SumsAt, class Write>
RowGradient gradient_of_mask(Row<T>& row, const Threshold& threshold, double t, const Strided& out,
                             SumsAt sums_at, Write write) {
    if (std::isnan(threshold.hi)) {
        fill(row, out, std::numeric_limits<T>::quiet_NaN());
        return {kNaN, kNaN};
    }
    if (threshold.is_hard || row.n == 0) {
        fill(row, out, T(0));
        return {};
    }
    const Scale<T> scale(threshold.hi, threshold.lo, t);
    GradientSums sums = sums_at(scale);
    double shift = 0;  // e is e^shift times what it would be
    if (!(sums.e >= kDensity)) {
        Sides sides = sides_of(row, threshold, t);
        if (!(sides.shift < kInfinity)) {  // no score takes part
            fill(row, out, T(0));
            return {};
        }
        const bool with_distance = std::exp(-sides.shift) > 0;  // no phi, no use for it
        sums = sums_by_sides<T>(&sides, t, true, with_distance, sums_at);
        shift = sides.shift;
    }
    const double mean = sums.ge / sums.e, mean_v = sums.ue / sums.e;
    RowGradient out_row;
    out_row.budget = mean;
    out_row.temperature = -0.5 * std::exp(-shift) * kLn2 * (sums.gue - mean_v * sums.ge) / t;
    const double sign = row.largest ? 1 : -1;
    write(scale, T(sign * 0.5 / t), T(mean));
    return out_row;
}

// factor e (g - mean), where sums have told what mean is.
template <class T>
void write_mask_gradient_at(const Row<T>& row, const Strided& grad, const Scale<T>& scale, T factor,
                            T mean, const Strided& out) {
    row.each_block([&](int64_t, int64_t first, int64_t count) {
        alignas(64) T scores[kChunk];
        alignas(64) T grads[kChunk];
        alignas(64) T values[kChunk];
        for (int64_t at = first; at < first + count; at += kChunk) {
            const int64_t n = std::min(kChunk, first + count - at);
            T* target = write_target(out, at, values);
            gradient_chunk(row.read(at, n, scores), read_chunk(grad, at, n, grads), n, scale,
                           factor, mean, target);
            write_chunk(out, at, n, target);
        }
    });
}

template <class T>
RowGradient write_gradient(Row<T>& row, const Strided& grad, const Threshold& threshold, double t,
                           const Strided& out) {
    const auto sums_at = [&](const Scale<T>& at) {
        return row.template reduce<GradientSums>([&](int64_t first, const T* r, int64_t n) {
            alignas(64) T buffer[kChunk];
            return gradient_sums_chunk(r, read_chunk(grad, first, n, buffer), n, at);
        });
    };
    const auto write = [&](const Scale<T>& scale, T factor, T mean) {
        write_mask_gradient_at(row, grad, scale, factor, mean, out);
    };
    return gradient_of_mask(row, threshold, t, out, sums_at, write);
}

// The gradient of g b: g q for scores, -g t / sum(phi) for the budget, -g <q, u> for t, the latter
// two with the sign of the side.
template <class T>
RowGradient write_threshold_gradient(Row<T>& row, double grad, const Threshold& threshold, double t,
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
        return row.template reduce<GradientSums>([&](int64_t, const T* r, int64_t n) {
            return gradient_sums_chunk(r, zeros<T>(), n, at);
        });
    };
    GradientSums sums = sums_at(scale);
    double shift = 0;
    if (sums.e >= kDensity) {
        const T factor = T(grad / sums.e);
        write_row(row, out,
                  [=](const T* r, int64_t n, T* q) { density_chunk(r, n, scale, factor, q); });
    } else {
        Sides sides = sides_of(row, threshold, t);
        if (!(sides.shift < kInfinity)) {  // no score takes part
            fill(row, out, T(0));
            return {};
        }
        sums = sums_by_sides<T>(&sides, t, true, true, sums_at);
        shift = sides.shift;
        const FarScale<T> far(sides, sums.e);
        write_row(row, out, [=](const T* r, int64_t n, T* q) {
            far_density_chunk(r, n, scale, far, T(grad), q);
        });
    }
    const double signed_grad = row.largest ? grad : -grad;
    RowGradient out_row;
    out_row.budget = -signed_grad * t * inverse_density(sums.e, shift);
    out_row.temperature = -signed_grad * kLn2 * (sums.ue / sums.e);
    return out_row;
}

}  // namespace
