/*
 * Goes on when ranks are killed, and takes them back when they have been started again.
 *
 *     cc survive.c $(pkg-config --cflags --libs brevity) -o survive
 *     brevity run -n 4 --restart 2 -- ./survive 2
 *
 * Each rank pulls a model towards a point of its own. With the average of the pulls it comes to rest in the
 * middle of these points. The argument says how many ranks kill themselves: rank 0 first, then rank 1.
 */
#include <brevity.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1000, STEPS = 600 };

static const double WAIT = 30; /* seconds for lost ranks to come back */

static brv_group *group;
static brv_exchange *exchange;
static float model[COUNT], gradient[COUNT];
static int32_t step;
static int32_t is_current; /* whether this rank has the job's model: one that has come back has not */

static int is_loss(brv_status status)
{
    return status == BRV_ERR_PEER_LOST || status == BRV_ERR_ABORTED || status == BRV_ERR_TIMEOUT;
}

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, brv_last_error());
    return 1;
}

/* Moves the model by the averaged gradient. */
static void apply(void)
{
    int i;

    for (i = 0; i < COUNT; i++)
        model[i] -= 0.02f * gradient[i];
    step++;
}

static brv_status take_step(void)
{
    float *gradients[1] = {gradient};
    int32_t own = brv_group_first_rank(group, brv_group_rank(group));
    brv_status status;
    int i;

    for (i = 0; i < COUNT; i++)
        gradient[i] = model[i] - (float)(own + i % 7);
    status = brv_exchange_average(exchange, gradients, 1, NULL);
    if (status == BRV_OK)
        apply();
    return status;
}

/* Gives the ranks that have come back the state of the lowest rank that has it. */
static brv_status share(void)
{
    int32_t *have = calloc((size_t)brv_group_size(group), sizeof *have), from = -1, all = 1, rank;
    void *parameters[1] = {model};
    size_t lengths[1] = {COUNT};
    brv_status status = brv_all_gather(group, &is_current, have, 1, BRV_I32, NULL);

    for (rank = 0; status == BRV_OK && rank < brv_group_size(group); rank++) {
        all = all && have[rank];
        from = from < 0 && have[rank] ? rank : from;
    }
    free(have);
    if (status != BRV_OK || all)
        return status;
    status = brv_exchange_share_state(exchange, group, from, parameters, lengths, 1, BRV_F32, NULL);
    if (status == BRV_OK)
        status = brv_broadcast(group, &step, 1, BRV_I32, from, NULL);
    is_current = is_current || status == BRV_OK;
    return status;
}

/* Puts another group in the place of the one before. */
static void replace(brv_group *next)
{
    brv_group_free(group);
    group = next;
}

static brv_status try_to_go_on(void)
{
    float *gradients[1] = {gradient};
    int32_t delivered = 0;
    brv_group *next = NULL;
    brv_status status = brv_group_shrink(group, &next, NULL);

    if (status != BRV_OK)
        return status;
    replace(next);
    /* All ranks that are left have delivered the last step, or none. What was not delivered is part of the
     * next step. One that has no state yet has been in no step: an argument of its own, then. */
    status = brv_exchange_go_on(exchange, group, gradients, 1, &delivered, NULL);
    if (status == BRV_OK && delivered)
        apply();
    else if (status != BRV_OK && !(status == BRV_ERR_ARGUMENT && !is_current))
        return status;
    status = brv_group_grow(group, WAIT, &next, NULL);
    if (status == BRV_OK)
        replace(next);
    else if (status == BRV_ERR_TRANSPORT)
        fprintf(stderr, "going on without the lost ranks: %s\n", brv_last_error());
    else
        return status;
    return share();
}

static brv_status go_on(void)
{
    brv_status status;

    do {
        printf("a rank is lost at step %d: %s\n", (int)step, brv_last_error());
        status = try_to_go_on();
    } while (is_loss(status));
    return status;
}

int main(int argc, char **argv)
{
    int32_t losses = argc > 1 ? atoi(argv[1]) : 0, has_returned, size, rank, i;
    size_t shape[1] = {COUNT};
    brv_policy policy = BRV_POLICY_GTOPK(0.5);
    double expected, largest = 0;
    brv_status status;

    brv_log_to_stderr();
    if (brv_group_join(NULL, &group) != BRV_OK)
        return failed("can't join");
    rank = brv_group_rank(group);
    has_returned = brv_group_has_returned(group, rank);
    is_current = !has_returned;
    if (brv_exchange_new(group, &exchange) != BRV_OK || brv_exchange_keep_going(exchange) != BRV_OK ||
        brv_exchange_add(exchange, "model", shape, 1, &policy) != BRV_OK)
        return failed("can't make an exchange");
    status = share();
    if (status != BRV_OK && (!is_loss(status) || go_on() != BRV_OK))
        return failed("can't come back");

    while (step < STEPS) {
        /* Each dies once, and only as the process with which the job has begun. */
        if (!has_returned && rank < losses && step == STEPS / 4 + 20 * rank)
            raise(SIGKILL);
        status = take_step();
        if (status != BRV_OK && (!is_loss(status) || go_on() != BRV_OK))
            return failed("can't go on");
    }
    while ((status = brv_barrier(group, NULL)) != BRV_OK)
        if (!is_loss(status) || go_on() != BRV_OK)
            return failed("can't end");

    size = brv_group_size(group);
    for (i = 0; i < COUNT; i++) {
        expected = (size - 1) / 2.0 + i % 7;
        largest = model[i] - expected > largest ? model[i] - expected : largest;
        largest = expected - model[i] > largest ? expected - model[i] : largest;
    }
    printf("rank %d of %d at step %d: at most %.3f from the middle%s\n", (int)rank, (int)size, (int)step,
           largest, has_returned ? ", has come back" : "");
    brv_exchange_free(exchange);
    brv_group_free(group);
    return 0;
}
