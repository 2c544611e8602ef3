/* Steps of an exchange: gradients that are handed in one by one come back with the bits of an average, and
 * what makes no sense is refused. */
#include "check.h"

enum { TENSORS = 5, MOST = 400, STEPS = 3 };

static const size_t lengths[TENSORS] = {400, 7, 0, 300, 60};

typedef float gradients[TENSORS][MOST];

static brv_exchange *exchange_of(brv_group *group, size_t bucket_bytes)
{
    brv_exchange *exchange = NULL;

    CHECK(brv_exchange_new(group, &exchange) == BRV_OK);
    CHECK(brv_exchange_set_bucket_bytes(exchange, bucket_bytes) == BRV_OK);
    CHECK(add_low_rank(exchange, "matrix", 20, 20, 2) == BRV_OK);
    CHECK(add_dense(exchange, "bias", lengths[1]) == BRV_OK);
    CHECK(add_gtopk(exchange, "empty", lengths[2], 0.5) == BRV_OK);
    CHECK(add_gtopk(exchange, "long", lengths[3], 0.05) == BRV_OK);
    CHECK(add_topk(exchange, "short", lengths[4], 0.2) == BRV_OK);
    return exchange;
}

static void fill(gradients values, float *pointers[TENSORS], uint32_t step, int32_t rank)
{
    size_t tensor, i;

    for (tensor = 0; tensor < TENSORS; tensor++) {
        pointers[tensor] = values[tensor];
        for (i = 0; i < lengths[tensor]; i++)
            values[tensor][i] = (float)number(TENSORS * step + (uint32_t)tensor, rank, i, 1000);
    }
}

/* Every rank begins at another tensor. */
static void compare(brv_group *group, size_t bucket_bytes)
{
    static gradients expected, found;
    brv_exchange *averaged = exchange_of(group, bucket_bytes), *stepped = exchange_of(group, bucket_bytes);
    int32_t rank = brv_group_rank(group);
    float *averages[TENSORS], *steps[TENSORS];
    brv_bucket_report report = BRV_BUCKET_REPORT_INIT;
    uint32_t step;

    for (step = 0; step < STEPS; step++) {
        size_t place, tensor, tensors = 0, bucket = 0;
        uint64_t sent = 0, received = 0, shared = 0, totals[4];

        fill(expected, averages, step, rank);
        fill(found, steps, step, rank);
        CHECK(brv_exchange_average(averaged, averages, TENSORS, NULL) == BRV_OK);
        CHECK(brv_exchange_begin(stepped) == BRV_OK);
        for (place = 0; place + step < TENSORS; place++) {
            tensor = (place + (size_t)rank) % TENSORS;
            CHECK(brv_exchange_ready(stepped, tensor, found[tensor], lengths[tensor]) == BRV_OK);
        }
        CHECK(brv_exchange_finish(stepped, steps, TENSORS) == BRV_OK);
        for (tensor = 0; tensor < TENSORS; tensor++)
            CHECK(memcmp(found[tensor], expected[tensor], lengths[tensor] * sizeof(float)) == 0);
        for (; brv_exchange_report(stepped, bucket, &report) == BRV_OK; bucket++) {
            tensors += (size_t)report.tensors;
            CHECK(report.first_tensor < TENSORS);
            CHECK(report.select >= 0 && report.communicate >= 0 && report.wait >= 0 && report.apply >= 0);
            sent += report.bytes_sent, received += report.bytes_received, shared += report.bytes_shared;
        }
        /* What all ranks have sent is what all have received. */
        totals[0] = sent, totals[1] = received, totals[2] = shared, totals[3] = 1;
        CHECK(brv_all_reduce(group, totals, totals, 4, BRV_U64, BRV_SUM, NULL) == BRV_OK);
        CHECK(totals[0] == totals[1] && (totals[0] + totals[2] > 0) == (totals[3] > 1));
        CHECK(tensors == TENSORS && bucket >= 4);
    }
    brv_exchange_free(averaged);
    brv_exchange_free(stepped);
}

/* The last rank has nothing, and the others are averaged over. */
static void participants(brv_group *group)
{
    static gradients values;
    float *pointers[TENSORS];
    brv_exchange *exchange = exchange_of(group, 0);
    int32_t rank = brv_group_rank(group), size = brv_group_size(group), others = size > 1 ? size - 1 : 1;
    int by_steps;

    CHECK(brv_exchange_average_over_participants(exchange) == BRV_OK);
    for (by_steps = 0; by_steps < 2; by_steps++) {
        fill(values, pointers, 0, rank);
        values[1][0] = 6;
        if (size > 1 && rank == size - 1) {
            if (by_steps) {
                memset(values, 0, sizeof(values));
                CHECK(brv_exchange_begin_empty(exchange) == BRV_OK);
                CHECK(brv_exchange_finish(exchange, pointers, TENSORS) == BRV_OK);
            } else {
                CHECK(brv_exchange_step_empty(exchange, pointers, TENSORS, NULL) == BRV_OK);
            }
        } else if (by_steps) {
            CHECK(brv_exchange_begin(exchange) == BRV_OK);
            CHECK(brv_exchange_finish(exchange, pointers, TENSORS) == BRV_OK);
        } else {
            CHECK(brv_exchange_average(exchange, pointers, TENSORS, NULL) == BRV_OK);
        }
        CHECK(values[1][0] == (float)(6 * others) / (float)others);
    }
    CHECK_FAILS(brv_exchange_average_over_participants(exchange), BRV_ERR_ARGUMENT, "before the first call");
    CHECK_FAILS(brv_exchange_average_over_participants(NULL), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_exchange_step_empty(NULL, pointers, TENSORS, NULL), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_exchange_begin_empty(NULL), BRV_ERR_ARGUMENT, "exchange is NULL");
    brv_exchange_free(exchange);
}

static void refusals(brv_group *group)
{
    static gradients values;
    float *pointers[TENSORS];
    brv_exchange *exchange = exchange_of(group, 1000);
    brv_bucket_report report = BRV_BUCKET_REPORT_INIT;
    size_t size = 0;

    fill(values, pointers, 0, brv_group_rank(group));
    CHECK_FAILS(brv_exchange_begin(NULL), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_exchange_ready(NULL, 0, values[0], 400), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_exchange_finish(NULL, pointers, TENSORS), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_exchange_report(NULL, 0, &report), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_exchange_set_bucket_bytes(NULL, 0), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_exchange_report(exchange, 0, &report), BRV_ERR_ARGUMENT, "bucket is 0");
    CHECK_FAILS(brv_exchange_report(exchange, 0, NULL), BRV_ERR_ARGUMENT, "report is NULL");
    CHECK_FAILS(brv_exchange_ready(exchange, 0, values[0], 400), BRV_ERR_ARGUMENT, "has not begun");
    CHECK_FAILS(brv_exchange_finish(exchange, pointers, TENSORS), BRV_ERR_ARGUMENT, "has not begun");
    CHECK_FAILS(brv_exchange_set_bucket_bytes(exchange, 0), BRV_ERR_ARGUMENT, "before the first call");
    CHECK(brv_exchange_begin(exchange) == BRV_OK);
    CHECK_FAILS(brv_exchange_begin(exchange), BRV_ERR_ARGUMENT, "in the middle of a step");
    CHECK_FAILS(brv_exchange_average(exchange, pointers, TENSORS, NULL), BRV_ERR_ARGUMENT, "in the middle");
    CHECK_FAILS(brv_exchange_step_empty(exchange, pointers, TENSORS, NULL), BRV_ERR_ARGUMENT,
                "in the middle");
    CHECK(values[0][0] == (float)number(0, brv_group_rank(group), 0, 1000));
    CHECK_FAILS(brv_exchange_load(exchange, values, 8), BRV_ERR_ARGUMENT, "in the middle");
    CHECK_FAILS(brv_exchange_saved_size(exchange, &size), BRV_ERR_ARGUMENT, "in the middle");
    CHECK_FAILS(brv_exchange_ready(exchange, TENSORS, values[0], 1), BRV_ERR_ARGUMENT, "list");
    CHECK_FAILS(brv_exchange_ready(exchange, 0, values[0], 399), BRV_ERR_ARGUMENT, "matrix");
    CHECK_FAILS(brv_exchange_ready(exchange, 0, NULL, 400), BRV_ERR_ARGUMENT, "gradient is NULL");
    CHECK(brv_exchange_ready(exchange, 0, values[0], 400) == BRV_OK);
    CHECK_FAILS(brv_exchange_ready(exchange, 0, values[0], 400), BRV_ERR_ARGUMENT, "twice");
    CHECK_FAILS(brv_exchange_finish(exchange, pointers, 2), BRV_ERR_ARGUMENT, "tensors is 2");
    CHECK(brv_exchange_finish(exchange, pointers, TENSORS) == BRV_OK);
    report.size = 1;
    CHECK_FAILS(brv_exchange_report(exchange, 0, &report), BRV_ERR_ARGUMENT, "BRV_BUCKET_REPORT_INIT");
    brv_exchange_free(exchange);
}

/* An exchange that is freed in the middle of a step ends the step for all. */
static void left(brv_group *group)
{
    brv_exchange *exchange = exchange_of(group, 1000);

    CHECK(brv_exchange_begin(exchange) == BRV_OK);
    brv_exchange_free(exchange);
    CHECK(brv_barrier(group, NULL) == BRV_ERR_ABORTED);
}

int main(void)
{
    brv_group *group = join();

    compare(group, 0);
    compare(group, 1 << 20);
    participants(group);
    refusals(group);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    left(group);
    brv_group_free(group);
    return 0;
}
