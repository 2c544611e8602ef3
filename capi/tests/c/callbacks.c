/* Functions of requests: what they may not do, and a request that is freed while its function runs. With a
 * progress thread. */
#define _DEFAULT_SOURCE
#include "check.h"
#include <unistd.h>

enum { N = 10 };

static int has_begun, has_ended;

static void set(int *flag)
{
    __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
}

static void await(const int *flag)
{
    while (!__atomic_load_n(flag, __ATOMIC_SEQ_CST)) {
        usleep(100);
    }
}

/* Uses its request after it is being freed. */
static void tests_slowly(brv_request *request, void *user_data)
{
    (void)user_data;
    set(&has_begun);
    usleep(50000);
    CHECK(brv_request_test(request) == BRV_OK);
    set(&has_ended);
}

static void freed_while_its_function_runs(brv_group *group)
{
    brv_request *request = NULL;
    int32_t value = 1;

    /* On rank 0 the call goes on while nobody is in the library but the progress thread. */
    if (brv_group_rank(group) != 0) {
        usleep(200000);
    }
    CHECK(brv_iall_reduce(group, &value, &value, 1, BRV_I32, BRV_SUM, &request, NULL) == BRV_OK);
    CHECK(brv_request_on_end(request, tests_slowly, NULL) == BRV_OK);
    await(&has_begun);
    brv_request_free(request);
    CHECK(__atomic_load_n(&has_ended, __ATOMIC_SEQ_CST) && value == brv_group_size(group));
}

struct waits {
    brv_exchange *exchange;
    float *place;
    int has_ended;
};

/* Whoever moves the calls would wait for itself. */
static void waits(brv_request *request, void *user_data)
{
    struct waits *waits = user_data;
    void *place = waits->place;
    float *const *places = &waits->place;

    CHECK(brv_request_test(request) == BRV_OK);
    CHECK_FAILS(brv_exchange_step_empty(waits->exchange, places, 1, NULL), BRV_ERR_ARGUMENT, "a callback");
    CHECK_FAILS(brv_exchange_step_empty_typed(waits->exchange, &place, 1, BRV_F32, NULL), BRV_ERR_ARGUMENT,
                "a callback");
    CHECK(brv_exchange_begin(waits->exchange) == BRV_OK);
    CHECK(brv_exchange_ready(waits->exchange, 0, waits->place, N) == BRV_OK);
    CHECK_FAILS(brv_exchange_finish(waits->exchange, places, 1), BRV_ERR_ARGUMENT, "a callback");
    CHECK_FAILS(brv_exchange_finish_typed(waits->exchange, &place, 1, BRV_F32), BRV_ERR_ARGUMENT,
                "a callback");
    set(&waits->has_ended);
}

static void a_function_may_not_wait(brv_group *group)
{
    float gradient[N];
    struct waits user_data = {NULL, gradient, 0};
    brv_request *request = NULL;
    int i;

    for (i = 0; i < N; i++) {
        gradient[i] = (float)(i + brv_group_rank(group));
    }
    CHECK(brv_exchange_new(group, &user_data.exchange) == BRV_OK);
    CHECK(add_dense(user_data.exchange, "all", N) == BRV_OK);
    CHECK(brv_ibarrier(group, &request, NULL) == BRV_OK);
    CHECK(brv_request_on_end(request, waits, &user_data) == BRV_OK);
    await(&user_data.has_ended);
    brv_request_free(request);
    /* The step that was begun there goes on here. */
    CHECK(brv_exchange_finish(user_data.exchange, &user_data.place, 1) == BRV_OK);
    for (i = 0; i < N; i++) {
        CHECK(gradient[i] == (float)i + (float)(brv_group_size(group) - 1) / 2);
    }
    brv_exchange_free(user_data.exchange);
}

int main(void)
{
    brv_config config = BRV_CONFIG_INIT;
    brv_group *group = NULL;

    config.progress_thread = 1;
    CHECK(brv_group_join(&config, &group) == BRV_OK);
    freed_while_its_function_runs(group);
    a_function_may_not_wait(group);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
