/* Low-rank all-reduce: a mean of the factors' rank is exact, the ranks' own parts add up to the mean, and a
 * warm start comes closer. Waiting and started calls give the same bits, and so does a loaded state. With
 * the argument `short`, few steps are taken, which come hardly closer. */
#include "check.h"

enum { ROWS = 30, COLS = 20, COUNT = ROWS * COLS, OTHER_ROWS = 7, OTHER_COLS = 50, OTHER = 350, RANK = 2 };

static int32_t rank, size;
static float first[COUNT], second[OTHER];
static const float *const matrices[] = {first, second};

/* Of rank 1 in all: all ranks share the left vector. */
static double simple(int32_t of, size_t i)
{
    return number(1, 0, i / COLS, 10) * (double)number(2, of, i % COLS, 10);
}

static double full(int32_t of, size_t i)
{
    return number(3, of, i, 10);
}

static double mean(double (*entry)(int32_t, size_t), size_t i)
{
    int32_t other;
    double sum = 0;

    for (other = 0; other < size; other++)
        sum += entry(other, i);
    return sum / size;
}

static brv_low_rank *new_low_rank(void)
{
    brv_low_rank *low_rank = NULL;

    CHECK(brv_low_rank_new(&low_rank) == BRV_OK && low_rank != NULL);
    CHECK(brv_low_rank_add(low_rank, ROWS, COLS, RANK, 5) == BRV_OK);
    CHECK(brv_low_rank_add(low_rank, OTHER_ROWS, OTHER_COLS, RANK, 6) == BRV_OK);
    return low_rank;
}

/* How far the mean of the second matrix is, relative to its norm. */
static double distance(brv_low_rank *low_rank)
{
    double error = 0, norm = 0;
    float out[OTHER];
    size_t i;

    CHECK(brv_low_rank_mean(low_rank, 1, out, OTHER) == BRV_OK);
    for (i = 0; i < OTHER; i++) {
        double expected = mean(full, i);
        error += (out[i] - expected) * (out[i] - expected);
        norm += expected * expected;
    }
    CHECK(norm > 0);
    return sqrt(error / norm);
}

/* Means have the same bits on all ranks and in another object, and the ranks' own parts add up to them. */
static void agree(brv_group *group, brv_low_rank *low_rank, brv_low_rank *other)
{
    static const size_t counts[] = {COUNT, OTHER};
    float out[COUNT], copy[COUNT], own[COUNT];
    size_t position, i;

    for (position = 0; position < 2; position++) {
        size_t n = counts[position];
        CHECK(brv_low_rank_mean(low_rank, position, out, n) == BRV_OK);
        CHECK(brv_low_rank_mean(other, position, copy, n) == BRV_OK);
        CHECK(memcmp(out, copy, n * sizeof(float)) == 0);
        CHECK(brv_broadcast(group, copy, n, BRV_F32, 0, NULL) == BRV_OK);
        CHECK(memcmp(out, copy, n * sizeof(float)) == 0);
        CHECK(brv_low_rank_own(low_rank, position, own, n) == BRV_OK);
        CHECK(brv_all_reduce(group, own, own, n, BRV_F32, BRV_AVERAGE, NULL) == BRV_OK);
        for (i = 0; i < n; i++)
            CHECK(fabs(own[i] - out[i]) < 1e-2);
    }
}

static void fails(brv_group *group, brv_low_rank *low_rank)
{
    float before[COUNT], after[COUNT];
    brv_request *request = NULL;
    int32_t culprit;

    CHECK(brv_low_rank_mean(low_rank, 0, before, COUNT) == BRV_OK);
    for (culprit = 0; culprit < size; culprit++) {
        float value = second[9];
        if (rank == culprit)
            second[9] = NAN;
        CHECK(brv_low_rank_all_reduce(group, low_rank, matrices, 2, NULL) == BRV_ERR_NON_FINITE);
        CHECK(brv_last_error_rank() == culprit);
        CHECK(brv_ilow_rank_all_reduce(group, low_rank, matrices, 2, &request, NULL) == BRV_OK);
        CHECK(brv_request_wait(request, BRV_FOREVER) == BRV_ERR_NON_FINITE);
        CHECK(brv_last_error_rank() == culprit);
        brv_request_free(request);
        second[9] = value;
    }
    CHECK(brv_low_rank_mean(low_rank, 0, after, COUNT) == BRV_OK);
    CHECK(memcmp(before, after, sizeof before) == 0);
}

/* Another object that has loaded the state goes on with the same bits. */
static void saved(brv_group *group, brv_low_rank *low_rank)
{
    brv_low_rank *loaded = new_low_rank(), *other = NULL;
    float out[COUNT];
    unsigned char *bytes;
    size_t size, i;
    int step;

    CHECK(brv_low_rank_new(&other) == BRV_OK && brv_low_rank_add(other, ROWS, COLS, RANK, 5) == BRV_OK);
    CHECK(brv_low_rank_saved_size(low_rank, &size) == BRV_OK);
    CHECK(size > (COLS + OTHER_COLS) * RANK * sizeof(float));
    bytes = malloc(size + 1);
    CHECK(bytes != NULL);
    bytes[size] = 0;
    CHECK_FAILS(brv_low_rank_save(low_rank, bytes, size + 1), BRV_ERR_ARGUMENT, "brv_low_rank_saved_size");
    CHECK(brv_low_rank_save(low_rank, bytes, size) == BRV_OK);
    for (i = 0; i < 8 * size; i += 97) {
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
        CHECK_FAILS(brv_low_rank_load(loaded, bytes, size), BRV_ERR_ARGUMENT, "saved state");
        bytes[i / 8] ^= (unsigned char)(1 << i % 8);
    }
    CHECK_FAILS(brv_low_rank_load(loaded, bytes, size - 1), BRV_ERR_ARGUMENT, "saved state ends");
    CHECK_FAILS(brv_low_rank_load(loaded, bytes, size + 1), BRV_ERR_ARGUMENT, "1 bytes follow");
    CHECK_FAILS(brv_low_rank_load(other, bytes, size), BRV_ERR_ARGUMENT, "saved state");
    CHECK_FAILS(brv_low_rank_load(loaded, NULL, 9), BRV_ERR_ARGUMENT, "saved is NULL");
    CHECK_FAILS(brv_low_rank_saved_size(NULL, &size), BRV_ERR_ARGUMENT, "low_rank is NULL");
    CHECK(brv_low_rank_load(loaded, bytes, size) == BRV_OK);
    CHECK_FAILS(brv_low_rank_mean(loaded, 0, out, COUNT), BRV_ERR_ARGUMENT, "low_rank has no factors");
    /* Ranks whose states have different origins are no job: both go on from the saved one. */
    CHECK(brv_low_rank_load(low_rank, bytes, size) == BRV_OK);
    for (step = 0; step < 2; step++) {
        CHECK(brv_low_rank_all_reduce(group, low_rank, matrices, 2, NULL) == BRV_OK);
        CHECK(brv_low_rank_all_reduce(group, loaded, matrices, 2, NULL) == BRV_OK);
        agree(group, low_rank, loaded);
        CHECK(brv_low_rank_warm(low_rank) == BRV_OK && brv_low_rank_warm(loaded) == BRV_OK);
    }
    free(bytes);
    brv_low_rank_free(loaded);
    brv_low_rank_free(other);
}

int main(int count, char **arguments)
{
    brv_group *group = join();
    brv_low_rank *waiting = new_low_rank(), *started = new_low_rank();
    brv_request *request = NULL;
    float out[COUNT];
    double at_first = 0, at_last = 0;
    size_t i;
    int is_short = count > 1 && strcmp(arguments[1], "short") == 0, step;

    rank = brv_group_rank(group), size = brv_group_size(group);
    for (i = 0; i < COUNT; i++)
        first[i] = (float)simple(rank, i);
    for (i = 0; i < OTHER; i++)
        second[i] = (float)full(rank, i);
    for (step = 0; step < (is_short ? 4 : 20); step++) {
        CHECK(brv_low_rank_all_reduce(group, waiting, matrices, 2, NULL) == BRV_OK);
        CHECK(brv_ilow_rank_all_reduce(group, started, matrices, 2, &request, NULL) == BRV_OK);
        if (step % 2 == 0)
            CHECK(brv_request_wait(request, BRV_FOREVER) == BRV_OK);
        brv_request_free(request);
        /* Without its request too the states come back. */
        while (brv_low_rank_mean(started, 0, out, COUNT) == BRV_ERR_ARGUMENT) {
            CHECK(strstr(brv_last_error(), "low_rank is in use by a call that was started") != NULL);
            brv_group_progress(group);
        }
        agree(group, waiting, started);
        for (i = 0; i < COUNT; i++)
            CHECK(fabs(out[i] - mean(simple, i)) < 1e-3);
        at_last = distance(waiting);
        at_first = step == 0 ? at_last : at_first;
        CHECK(brv_low_rank_warm(waiting) == BRV_OK && brv_low_rank_warm(started) == BRV_OK);
    }
    CHECK(at_last < (is_short ? 1 : 0.98) * at_first);
    fails(group, started);
    saved(group, waiting);
    CHECK(brv_low_rank_add(waiting, 2, 3, 9, 1) == BRV_OK);
    CHECK_FAILS(brv_low_rank_warm(waiting), BRV_ERR_ARGUMENT, "low_rank has no factors");
    brv_low_rank_free(waiting);
    brv_low_rank_free(started);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
