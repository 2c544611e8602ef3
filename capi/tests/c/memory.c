/* Want of memory is an error of the call, and ends no process: `memory`, on 2 ranks. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <sys/resource.h>
#include <unistd.h>

/* 64 MiB of a tensor; half as much is left. */
enum { COUNT = 1 << 24, LEFT = 32 << 20, SIDE = 1 << 12 };

static struct rlimit before;

/* The process gets at most LEFT bytes more. */
static void limit(void)
{
    struct rlimit limit = before;
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1 && fclose(file) == 0);
    limit.rlim_cur = pages * (unsigned long)sysconf(_SC_PAGESIZE) + LEFT;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

static void unlimit(void)
{
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
}

/* Every call that would make the exchange. */
static void refused(brv_exchange *exchange)
{
    size_t bytes = 7;
    char byte;
    float value;

    CHECK_FAILS(brv_exchange_saved_size(exchange, &bytes), BRV_ERR_EXHAUSTED, "no memory for ");
    CHECK(bytes == 7 && strstr(brv_last_error(), "give the process more") != NULL);
    CHECK(brv_last_error_rank() == -1);
    CHECK(brv_exchange_save(exchange, &byte, 1) == BRV_ERR_EXHAUSTED);
    CHECK(brv_exchange_load(exchange, &byte, 1) == BRV_ERR_EXHAUSTED);
    CHECK(brv_exchange_residual(exchange, "tensor", &value, 1) == BRV_ERR_EXHAUSTED);
    CHECK(brv_exchange_set_density(exchange, "tensor", 0.5) == BRV_ERR_EXHAUSTED);
    brv_exchange_free(exchange);
}

static brv_exchange *exchange_for(brv_group *group)
{
    brv_exchange *exchange = NULL;

    CHECK(brv_exchange_new(group, &exchange) == BRV_OK);
    return exchange;
}

/* Tensors that no machine has memory for. */
static void huge(brv_group *group)
{
    static const size_t long_side = (size_t)1 << 60, high = (size_t)1 << 40;
    const size_t shapes[][2] = {{high, 1 << 10}, {1, long_side}, {long_side, 1}};
    brv_exchange *exchange = exchange_for(group);
    brv_feedback *feedback = NULL;
    float gradient[4] = {1, 2, 3, 4};
    size_t i;

    CHECK(add_dense(exchange, "tensor", (size_t)1 << 46) == BRV_OK);
    refused(exchange);
    for (i = 0; i < 3; i++) {
        exchange = exchange_for(group);
        CHECK(add_low_rank(exchange, "tensor", shapes[i][0], shapes[i][1], 4) == BRV_OK);
        refused(exchange);
    }
    CHECK(brv_feedback_new(&feedback) == BRV_OK);
    CHECK(brv_low_rank_average(group, feedback, gradient, high, 1 << 10, 4, NULL) == BRV_ERR_EXHAUSTED);
    CHECK(brv_gtopk_average(group, feedback, gradient, 4, 1, NULL) == BRV_OK && gradient[3] == 4);
    brv_feedback_free(feedback);
}

/* Tensors that this process has no memory for. */
static void limited(brv_group *group)
{
    float *gradient = calloc(COUNT, sizeof *gradient);
    brv_feedback *feedback = NULL;
    brv_residual *residual = NULL;
    size_t i;

    CHECK(gradient != NULL && brv_feedback_new(&feedback) == BRV_OK);
    gradient[7] = 3;
    limit();
    for (i = 0; i < 3; i++) {
        brv_exchange *exchange = exchange_for(group);

        if (i == 0)
            CHECK(add_dense(exchange, "tensor", COUNT) == BRV_OK);
        else if (i == 1)
            CHECK(add_topk(exchange, "tensor", COUNT, 0.1) == BRV_OK);
        else
            CHECK(add_low_rank(exchange, "tensor", SIDE, SIDE, 2) == BRV_OK);
        refused(exchange);
    }
    CHECK_FAILS(brv_residual_new(COUNT, &residual), BRV_ERR_EXHAUSTED, "no memory for ");
    CHECK(residual == NULL);
    CHECK(brv_low_rank_average(group, feedback, gradient, SIDE, SIDE, 2, NULL) == BRV_ERR_EXHAUSTED);
    CHECK(brv_gtopk_average(group, feedback, gradient, COUNT, 0.001, NULL) == BRV_ERR_EXHAUSTED);
    /* The residual fits, the entries do not. */
    CHECK(brv_gtopk_average(group, feedback, gradient, COUNT / 4, 1, NULL) == BRV_ERR_EXHAUSTED);
    /* A rank that has too little sends nothing: the others wait until it comes with less. */
    CHECK(brv_gtopk_average(group, feedback, gradient, COUNT / 4, 0.00001, NULL) == BRV_OK);
    CHECK(gradient[7] == 3);
    /* A density that takes too much changes nothing. */
    CHECK(brv_gtopk_average(group, feedback, gradient, COUNT / 4, 1, NULL) == BRV_ERR_EXHAUSTED);
    CHECK(brv_gtopk_average(group, feedback, gradient, COUNT / 4, 0.00001, NULL) == BRV_OK);
    CHECK(gradient[7] == 3);
    unlimit();
    brv_feedback_free(feedback);
    free(gradient);
}

/* There is memory for the tensor, but not for a copy of it. */
static void saved(brv_group *group)
{
    brv_exchange *exchange = exchange_for(group);
    float *residual = calloc(COUNT, sizeof *residual);
    unsigned char *out;
    size_t bytes;

    CHECK(add_low_rank(exchange, "tensor", SIDE, SIDE, 2) == BRV_OK && residual != NULL);
    CHECK(brv_exchange_saved_size(exchange, &bytes) == BRV_OK && bytes > COUNT * sizeof(float));
    CHECK((out = malloc(bytes)) != NULL && brv_exchange_save(exchange, out, bytes) == BRV_OK);
    limit();
    CHECK(brv_exchange_saved_size(exchange, &bytes) == BRV_OK);
    CHECK_FAILS(brv_exchange_save(exchange, out, bytes), BRV_ERR_EXHAUSTED, "no memory for ");
    CHECK(brv_exchange_residual(exchange, "tensor", residual, COUNT) == BRV_OK);
    unlimit();
    CHECK(brv_exchange_save(exchange, out, bytes) == BRV_OK);
    limit();
    CHECK(brv_exchange_load(exchange, out, bytes) == BRV_ERR_EXHAUSTED);
    unlimit();
    CHECK(brv_exchange_load(exchange, out, bytes) == BRV_OK);
    free(out);
    free(residual);
    brv_exchange_free(exchange);
}

int main(void)
{
    brv_group *group = join(), *alone = NULL;

    CHECK(getrlimit(RLIMIT_AS, &before) == 0 && brv_group_solo(&alone) == BRV_OK);
    huge(alone);
    saved(alone);
    brv_group_free(alone);
    limited(group);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
