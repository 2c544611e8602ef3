/* Low rank: a mean of rank 1 is exact, and one of full rank is delivered over time through the residuals. */
#include "check.h"

enum { ROWS = 60, COLS = 45, COUNT = ROWS * COLS, STEPS = 400 };

/* All ranks share the left vector, so the mean has rank 1. */
static double rank_one(int32_t rank, size_t i)
{
    return number(1, 0, i / COLS, 10) * (double)number(2, rank, i % COLS, 10);
}

static double full_rank(int32_t rank, size_t i)
{
    return number(3, rank, i, 10);
}

static double mean(brv_group *group, double (*entry)(int32_t, size_t), size_t i)
{
    int32_t rank, size = brv_group_size(group);
    double sum = 0;
    for (rank = 0; rank < size; rank++)
        sum += entry(rank, i);
    return sum / size;
}

/* The mean after `steps` steps, and how far it is from the oracle, relative to the oracle's norm. */
static double distance(brv_group *group, double (*entry)(int32_t, size_t), uint32_t rank, int steps)
{
    static float gradient[COUNT];
    static double total[COUNT];
    double error = 0, norm = 0;
    brv_feedback *feedback = NULL;
    size_t i;
    int step;

    memset(total, 0, sizeof total);
    CHECK(brv_feedback_new(&feedback) == BRV_OK);
    for (step = 0; step < steps; step++) {
        for (i = 0; i < COUNT; i++)
            gradient[i] = (float)entry(brv_group_rank(group), i);
        CHECK(brv_low_rank_average(group, feedback, gradient, ROWS, COLS, rank, NULL) == BRV_OK);
        for (i = 0; i < COUNT; i++)
            total[i] += gradient[i];
    }
    brv_feedback_free(feedback);
    for (i = 0; i < COUNT; i++) {
        double expected = mean(group, entry, i);
        error += (total[i] / steps - expected) * (total[i] / steps - expected);
        norm += expected * expected;
    }
    CHECK(norm > 0);
    return sqrt(error / norm);
}

int main(void)
{
    brv_group *group = join();
    double first, later;

    CHECK(distance(group, rank_one, 1, 1) < 1e-5);
    CHECK(distance(group, rank_one, 4, 1) < 1e-5);
    first = distance(group, full_rank, 4, 1);
    later = distance(group, full_rank, 4, STEPS);
    CHECK(first > 0.3 && later < first / 8);
    /* Factors of rank 40 would be larger than the matrix: it travels dense. */
    CHECK(distance(group, full_rank, 40, 1) < 1e-6);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
