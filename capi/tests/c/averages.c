/* Compressed averages that do not block: the same bits as the blocking ones, and residuals that come back. */
#define _DEFAULT_SOURCE
#include "check.h"

enum { ROWS = 40, COLS = 30, LENGTH = ROWS * COLS, STEPS = 5, TENSORS = 3 };

static int32_t rank;

static void fill(float *values, uint32_t seed)
{
    size_t i;
    for (i = 0; i < LENGTH; i++) {
        values[i] = (float)number(seed, rank, i, 1000) / 7;
    }
}

static void ends_well(brv_request *request)
{
    CHECK(brv_request_wait(request, BRV_FOREVER) == BRV_OK);
    brv_request_free(request);
}

static void feedbacks(brv_group *group)
{
    static float blocking[2][LENGTH], started[2][LENGTH], residuals[2][LENGTH];
    brv_feedback *feedbacks[4] = {NULL};
    brv_options options = BRV_OPTIONS_INIT;
    brv_request *requests[2] = {NULL, NULL};
    size_t i, bytes;
    uint32_t step;

    options.timeout = 30;
    for (i = 0; i < 4; i++) {
        CHECK(brv_feedback_new(&feedbacks[i]) == BRV_OK);
    }
    for (step = 0; step < STEPS; step++) {
        double density = 0.01 * (1 + step);
        for (i = 0; i < 2; i++) {
            fill(blocking[i], 10 * step + (uint32_t)i);
            memcpy(started[i], blocking[i], sizeof started[i]);
        }
        CHECK(brv_gtopk_average(group, feedbacks[0], blocking[0], LENGTH, density, NULL) == BRV_OK);
        CHECK(brv_low_rank_average(group, feedbacks[1], blocking[1], ROWS, COLS, 2, NULL) == BRV_OK);
        CHECK(brv_igtopk_average(group, feedbacks[2], started[0], LENGTH, density, &requests[0], NULL) ==
              BRV_OK);
        CHECK(brv_ilow_rank_average(group, feedbacks[3], started[1], ROWS, COLS, 2, &requests[1], &options) ==
              BRV_OK);
        if (step == 1) {
            /* Of a freed request the residual comes back too. */
            brv_request_free(requests[0]);
            ends_well(requests[1]);
            while (brv_feedback_saved_size(feedbacks[2], &bytes) == BRV_ERR_ARGUMENT) {
                CHECK(strstr(brv_last_error(), "in use by a call") != NULL);
                brv_group_progress(group);
            }
        } else {
            ends_well(requests[1]);
            ends_well(requests[0]);
        }
        for (i = 0; i < 2; i++) {
            CHECK(memcmp(blocking[i], started[i], sizeof started[i]) == 0);
            CHECK(brv_feedback_residual(feedbacks[i], residuals[0], LENGTH) == BRV_OK);
            CHECK(brv_feedback_residual(feedbacks[i + 2], residuals[1], LENGTH) == BRV_OK);
            CHECK(memcmp(residuals[0], residuals[1], sizeof residuals[0]) == 0);
        }
    }
    CHECK_FAILS(brv_igtopk_average(group, feedbacks[2], started[0], LENGTH - 1, 0.1, &requests[0], NULL),
                BRV_ERR_ARGUMENT, "gTop-k of 1199 elements");
    CHECK_FAILS(brv_igtopk_average(group, feedbacks[2], started[0], LENGTH, 2, &requests[0], NULL),
                BRV_ERR_ARGUMENT, "density");
    CHECK_FAILS(brv_ilow_rank_average(group, NULL, started[0], ROWS, COLS, 2, &requests[0], NULL),
                BRV_ERR_ARGUMENT, "feedback is NULL");
    CHECK(requests[0] == NULL && brv_feedback_residual(feedbacks[2], residuals[0], LENGTH) == BRV_OK);
    for (i = 0; i < 4; i++) {
        brv_feedback_free(feedbacks[i]);
    }
}

static brv_exchange *list(brv_group *group)
{
    static const size_t shape[] = {ROWS, COLS};
    brv_policy policies[] = {BRV_POLICY_GTOPK(0.05), BRV_POLICY_LOW_RANK(3), BRV_POLICY_TOPK(0.02)};
    static const char *const names[] = {"a", "b", "c"};
    brv_exchange *exchange = NULL;
    int i;

    CHECK(brv_exchange_new(group, &exchange) == BRV_OK);
    for (i = 0; i < TENSORS; i++) {
        CHECK(brv_exchange_add(exchange, names[i], shape, 2, &policies[i]) == BRV_OK);
    }
    return exchange;
}

static void exchanges(brv_group *group)
{
    static float blocking[TENSORS][LENGTH], started[TENSORS][LENGTH];
    float *first[TENSORS], *second[TENSORS];
    brv_exchange *exchange = list(group), *other = list(group);
    brv_request *request = NULL;
    int i;
    uint32_t step;

    for (step = 0; step < STEPS; step++) {
        for (i = 0; i < TENSORS; i++) {
            first[i] = blocking[i];
            second[i] = started[i];
            fill(blocking[i], 100 + 10 * step + (uint32_t)i);
            memcpy(started[i], blocking[i], sizeof started[i]);
        }
        CHECK(brv_iexchange_average(other, second, TENSORS, &request, NULL) == BRV_OK);
        /* The pointers are copied. */
        memset(second, 0, sizeof second);
        CHECK(brv_exchange_average(exchange, first, TENSORS, NULL) == BRV_OK);
        ends_well(request);
        CHECK(memcmp(blocking, started, sizeof started) == 0);
    }
    CHECK_FAILS(brv_iexchange_average(other, first, TENSORS - 1, &request, NULL), BRV_ERR_ARGUMENT,
                "tensors is 2");
    second[0] = second[1] = second[2] = started[0];
    CHECK_FAILS(brv_iexchange_average(other, second, TENSORS, &request, NULL), BRV_ERR_ARGUMENT, "overlap");
    /* A value that is not finite is named, and the exchange stays usable. */
    fill(started[0], 1);
    started[0][7] = rank == 0 ? (float)NAN : 0;
    for (i = 0; i < TENSORS; i++) {
        second[i] = started[i];
    }
    CHECK(brv_iexchange_average(other, second, TENSORS, &request, NULL) == BRV_OK);
    CHECK(brv_request_wait(request, BRV_FOREVER) == BRV_ERR_NON_FINITE && brv_last_error_rank() == 0);
    brv_request_free(request);
    fill(started[0], 1);
    CHECK(brv_iexchange_average(other, second, TENSORS, &request, NULL) == BRV_OK);
    brv_exchange_free(exchange);
    /* The call goes on without its exchange. */
    brv_exchange_free(other);
    ends_well(request);
}

int main(void)
{
    brv_group *group = join();

    rank = brv_group_rank(group);
    feedbacks(group);
    exchanges(group);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
