// Several threads at work: how they share it, and whether they come in time.

#pragma once

#include <pthread.h>
#include <time.h>

#include <atomic>
#include <cstdint>
#include <new>

namespace {

constexpr int64_t kParallelScores = 128 * 1024;  // of one row that several threads read together

int64_t nanoseconds(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

int64_t now() { return nanoseconds(CLOCK_MONOTONIC); }

// Where other programs keep the processors busy, a thread may be waited for until one of them is
// interrupted, some milliseconds. Work of less than that is then better done alone for a while.
class Lateness {
   public:
    // What came to an end just now has taken so long, and no thread has worked longer than that.
    void tell(int64_t taken, int64_t worked) {
        constexpr int64_t kLate = 500'000, kParts = 4, kWhile = 32;
        if (taken > kLate && taken > kParts * worked) until_.store(now() + kWhile * taken);
    }
    bool is_over() const { return now() >= until_.load(); }

   private:
    std::atomic<int64_t> until_{INT64_MIN};
};

Lateness g_lateness;

// The runtime's threads are not there in a forked process, and what they are to share waits for
// ever, that of torch's functions, too (torch's own workers therefore ask for one thread).
bool g_is_forked = false;
#ifdef _OPENMP
const int g_fork_is_told = pthread_atfork(nullptr, nullptr, [] { g_is_forked = true; });
#endif

// body(0) ... body(count - 1), `share` at a time on each of several threads. One thread enters no
// parallel region, which would cost more than a short row. An exception must not leave a region.
template <class Body>
void for_each(int64_t count, int threads, int64_t share, Body body) {
    (void)share;
#ifdef _OPENMP
    if (threads > 1 && !g_is_forked) {
        bool out_of_memory = false;
        const int64_t begun = now();
        int64_t worked = 0;
#pragma omp parallel num_threads(threads) reduction(max : worked)
        {
            const int64_t awake = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
#pragma omp for schedule(dynamic, share) nowait
            for (int64_t i = 0; i < count; ++i) {
                try {
                    body(i);
                } catch (const std::bad_alloc&) {
#pragma omp atomic write
                    out_of_memory = true;
                }
            }
            worked = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - awake;
        }
        g_lateness.tell(now() - begun, worked);
        if (out_of_memory) throw std::bad_alloc();
        return;
    }
#endif
    (void)threads;
    for (int64_t i = 0; i < count; ++i) body(i);
}

}  // namespace
