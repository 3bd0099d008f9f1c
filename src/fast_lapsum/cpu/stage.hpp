// Rows that lie across the memory, a few at a time in contiguous copies: they are neighbours score
// by score, and one row read alone would take a cache line for each of its scores.

#pragma once

#include <memory>
#include <mutex>

#include "rows.hpp"
#include "transpose.hpp"

namespace {

constexpr int64_t kStagedRows = 16;         // floats of a cache line
constexpr int64_t kStageBytes = 8 << 20;    // copies of longer rows are of fewer of them
constexpr int64_t kStagedScores = 4096;     // that a thread copies at a time
constexpr int64_t kStageAlignment = 64;

// Rows of n scores, `pitch` apart: not a power of two, which would crowd them into a few places of
// the cache.
int64_t stage_pitch(int64_t n) { return (n + 15) / 16 * 16 + 16; }

// A tensor's rows in a contiguous copy.
struct StagedRows {
    char* data = nullptr;  // of the tensor's first row
    int64_t stride = 0, row_stride = 0, bytes = 0, rows = 0, n = 0;
    char* copy = nullptr;

    int64_t size() const { return rows * stage_pitch(n) * bytes; }

    void read(int threads) const {
        each_part(threads, [&](auto element, int64_t first, int64_t count) {
            using Element = decltype(element);
            copy_in(across<Element>(), rows, first, count, reinterpret_cast<Element*>(copy),
                    stage_pitch(n));
        });
    }

    void write(int threads) const {
        each_part(threads, [&](auto element, int64_t first, int64_t count) {
            using Element = decltype(element);
            copy_out(across<Element>(), rows, first, count, reinterpret_cast<Element*>(copy),
                     stage_pitch(n));
        });
    }

   private:
    template <class Element>
    Across<Element> across() const {
        return {reinterpret_cast<Element*>(data), stride, row_stride};
    }

    // work(0 of the element's type, first score, scores) for all parts of the rows.
    template <class Work>
    void each_part(int threads, Work work) const {
        const int64_t parts = (n + kStagedScores - 1) / kStagedScores;
        for_each(parts, rows * n >= kParallelScores ? threads : 1, 1, [&](int64_t part) {
            const int64_t first = part * kStagedScores, count = std::min(kStagedScores, n - first);
            if (bytes == 8) return work(double(), first, count);
            if (bytes == 4) return work(float(), first, count);
            bytes == 2 ? work(uint16_t(), first, count) : work(uint8_t(), first, count);
        });
    }
};

// Memory for copies, as much as there are threads at work.
class StagePool {
   public:
    explicit StagePool(int64_t bytes) : bytes_(bytes) {}

    using Memory = std::unique_ptr<char[]>;

    Memory take() {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (free_.empty()) return Memory(new char[size_t(bytes_ + kStageAlignment)]);
        Memory memory = std::move(free_.back());
        free_.pop_back();
        return memory;
    }

    void give_back(Memory memory) {
        const std::lock_guard<std::mutex> lock(mutex_);
        free_.push_back(std::move(memory));
    }

   private:
    int64_t bytes_;
    std::mutex mutex_;
    std::vector<Memory> free_;
};

LAPSUM_INLINE char* aligned(char* memory) {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    return memory + (kStageAlignment - address % kStageAlignment) % kStageAlignment;
}

}  // namespace
