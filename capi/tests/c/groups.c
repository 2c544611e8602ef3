/* Groups of some ranks: `groups WAY`, on 4 ranks.
 *
 * `splits`: by colour and key, duplicates, hosts, timeouts, and every wrong argument.
 * `exhausts`: more groups than there are numbers.
 * `dies`: rank 3 is killed. The others lose the groups that it is a member of, and go on in one without it:
 * with their residuals, and with those that rank 3 had saved. A new rank gets their state. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <signal.h>

static int32_t sum(brv_group *group, int32_t value)
{
    CHECK(brv_all_reduce(group, &value, &value, 1, BRV_I32, BRV_SUM, NULL) == BRV_OK);
    return value;
}

static brv_group *split(brv_group *group, int32_t colour, int32_t key)
{
    brv_group *part = NULL;

    CHECK(brv_group_split(group, colour, key, &part, NULL) == BRV_OK);
    CHECK((part == NULL) == (colour == BRV_NO_COLOUR));
    return part;
}

/* ---- splits -------------------------------------------------------------------------------------------- */

/* None of these sends anything: the others do not notice. */
static void misuse(brv_group *group)
{
    brv_group *part = group, *other = group;

    CHECK_FAILS(brv_group_split(NULL, 0, 0, &part, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK(part == NULL);
    CHECK_FAILS(brv_group_split(group, 0, 0, NULL, NULL), BRV_ERR_ARGUMENT, "part is NULL");
    CHECK_FAILS(brv_group_split(group, -2, 0, &part, NULL), BRV_ERR_ARGUMENT, "BRV_NO_COLOUR");
    CHECK_FAILS(brv_group_split(group, INT32_MIN, 0, &part, NULL), BRV_ERR_ARGUMENT, "colour is -2147483648");
    CHECK_FAILS(brv_group_duplicate(NULL, &part, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_group_duplicate(group, NULL, NULL), BRV_ERR_ARGUMENT, "duplicate is NULL");
    CHECK_FAILS(brv_group_shrink(NULL, &part, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_group_shrink(group, NULL, NULL), BRV_ERR_ARGUMENT, "left is NULL");
    CHECK_FAILS(brv_group_shrink_any(group, NULL, NULL), BRV_ERR_ARGUMENT, "left is NULL");
    CHECK_FAILS(brv_group_grow(NULL, 1, &part, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_group_grow(group, 1, NULL, NULL), BRV_ERR_ARGUMENT, "grown is NULL");
    CHECK_FAILS(brv_group_grow(group, -1, &part, NULL), BRV_ERR_ARGUMENT, "wait is -1");
    CHECK(brv_group_has_returned(NULL, 0) == -1 && brv_group_has_returned(group, 4) == -1);
    CHECK(brv_group_first_rank(NULL, 0) == -1 && brv_group_first_rank(group, -1) == -1);
    CHECK(brv_group_has_returned(group, 3) == 0 && brv_group_first_rank(group, 3) == 3);
    CHECK(brv_group_first_size(NULL) == -1 && brv_group_first_size(group) == 4);
    /* Nobody is lost: another handle of the same group. */
    CHECK(brv_group_grow(group, 60, &part, NULL) == BRV_OK && brv_group_size(part) == 4);
    brv_group_free(part);
    part = NULL;
    part = group;
    CHECK_FAILS(brv_group_hosts(NULL, &part, &other, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK(part == NULL && other == NULL);
    CHECK_FAILS(brv_group_hosts(group, NULL, &other, NULL), BRV_ERR_ARGUMENT, "local is NULL");
    CHECK_FAILS(brv_group_hosts(group, &part, NULL, NULL), BRV_ERR_ARGUMENT, "leaders is NULL");
    CHECK_FAILS(brv_group_hosts(group, &part, &part, NULL), BRV_ERR_ARGUMENT, "the same pointer");
    CHECK_FAILS(brv_group_set_timeout(NULL, 1), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_group_set_timeout(group, 0), BRV_ERR_ARGUMENT, "seconds is 0");
    CHECK_FAILS(brv_group_set_timeout(group, -1.5), BRV_ERR_ARGUMENT, "seconds is -1.5");
    CHECK_FAILS(brv_group_set_timeout(group, (double)NAN), BRV_ERR_ARGUMENT, "above 0");
    CHECK_FAILS(brv_group_set_timeout(group, 1e300), BRV_ERR_ARGUMENT, "below 1e19");
    CHECK(brv_group_set_timeout(group, (double)INFINITY) == BRV_OK);
    CHECK(brv_group_set_timeout(group, 60) == BRV_OK);
    CHECK(brv_group_world_rank(NULL, 0) == -1);
    CHECK(brv_group_world_rank(group, -1) == -1 && brv_group_world_rank(group, 4) == -1);
    CHECK(strstr(brv_last_error(), "0 to 3") != NULL);
}

/* The timeout of one call closes its group, and its name is told. */
static void one_late_call(brv_group *group, brv_group *duplicate)
{
    brv_options options = BRV_OPTIONS_INIT;
    brv_group *late = NULL;

    CHECK(brv_group_duplicate(group, &late, NULL) == BRV_OK);
    options.timeout = 0.05;
    options.name = "the step";
    if (brv_group_rank(group) == 0)
        CHECK_FAILS(brv_barrier(late, &options), BRV_ERR_TIMEOUT, "the step: ");
    /* The others keep theirs until then. */
    CHECK(sum(duplicate, 1) == 2 && brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(late);
}

static void splits(brv_group *group)
{
    int32_t rank = brv_group_rank(group);
    /* Ranks 3, 1 and 0, 2: negative keys come first. */
    brv_group *pair = split(group, rank % 2, rank == 3 ? -5 : rank), *duplicate = NULL, *local = NULL;
    brv_group *leaders = NULL, *none = split(group, rank == 2 ? BRV_NO_COLOUR : 7, 0), *late = NULL;
    brv_status status;

    CHECK(brv_group_size(pair) == 2);
    CHECK(brv_group_world_rank(pair, 0) == (rank % 2 == 1 ? 3 : 0));
    CHECK(brv_group_world_rank(pair, 1) == (rank % 2 == 1 ? 1 : 2));
    CHECK(brv_group_world_rank(pair, brv_group_rank(pair)) == rank);
    CHECK(strcmp(brv_group_transport(pair), brv_group_transport(group)) == 0);
    CHECK(sum(pair, rank) == (rank % 2 == 1 ? 4 : 2) && sum(group, 1) == 4);
    CHECK(none == NULL ? rank == 2 : sum(none, 1) == 3);
    brv_group_free(none);

    CHECK(brv_group_duplicate(pair, &duplicate, NULL) == BRV_OK && sum(duplicate, 10) == 20);
    brv_group_free(pair);
    CHECK(sum(duplicate, 1) == 2);

    /* All ranks are on this host; without shared memory each is taken for a host of its own. */
    CHECK(brv_group_hosts(group, &local, &leaders, NULL) == BRV_OK && brv_group_size(local) > 0);
    CHECK((leaders != NULL) == (brv_group_rank(local) == 0));
    CHECK(leaders == NULL || brv_group_size(local) * brv_group_size(leaders) == 4);
    brv_group_free(local);
    brv_group_free(leaders);

    /* A timeout closes one group. */
    CHECK(brv_group_duplicate(group, &late, NULL) == BRV_OK && brv_group_set_timeout(late, 0.05) == BRV_OK);
    if (rank == 0) {
        CHECK(brv_barrier(late, NULL) == BRV_ERR_TIMEOUT && brv_last_error_rank() > 0);
    } else {
        /* Rank 2 comes when rank 0 has given up. All that it needs may have arrived, so it may pass once. */
        CHECK(brv_group_set_timeout(late, 60) == BRV_OK && sum(duplicate, 0) == 0);
        status = brv_barrier(late, NULL);
        status = status == BRV_OK ? brv_barrier(late, NULL) : status;
        CHECK(status == BRV_ERR_TIMEOUT || status == BRV_ERR_ABORTED);
    }
    if (rank == 0)
        CHECK(sum(duplicate, 0) == 0);
    brv_group_free(late);
    one_late_call(group, duplicate);
    brv_group_free(duplicate);
}

/* More groups than there are numbers. */
static void exhaust(brv_group *group)
{
    static brv_group *groups[2000];
    int count = 0, i;
    brv_status status;

    while ((status = brv_group_duplicate(group, &groups[count], NULL)) == BRV_OK)
        count++;
    CHECK(status == BRV_ERR_EXHAUSTED && groups[count] == NULL && count == 1007);
    CHECK(strstr(brv_last_error(), "drop groups") != NULL && brv_last_error_rank() == -1);
    CHECK(sum(groups[count - 1], 1) == 4);
    for (i = 0; i < count; i++)
        brv_group_free(groups[i]);
    CHECK(brv_group_duplicate(group, &groups[0], NULL) == BRV_OK && sum(groups[0], 1) == 4);
    brv_group_free(groups[0]);
}

/* ---- dies ---------------------------------------------------------------------------------------------- */

enum { COUNT = 400, ROWS = 20, COLS = 20, TENSORS = 3 };

static float gradients[TENSORS][COUNT];

static void fill(uint32_t step, int32_t rank)
{
    int tensor;
    size_t i;

    for (tensor = 0; tensor < TENSORS; tensor++)
        for (i = 0; i < COUNT; i++)
            gradients[tensor][i] = (float)number(step * 4 + (uint32_t)tensor, rank, i, 1000);
}

static brv_status average(brv_exchange *exchange)
{
    float *pointers[TENSORS];
    int tensor;

    for (tensor = 0; tensor < TENSORS; tensor++)
        pointers[tensor] = gradients[tensor];
    return brv_exchange_average(exchange, pointers, TENSORS, NULL);
}

static brv_exchange *make(brv_group *group)
{
    brv_exchange *exchange = NULL;

    CHECK(brv_exchange_new(group, &exchange) == BRV_OK);
    CHECK(add_dense(exchange, "dense", COUNT) == BRV_OK);
    CHECK(add_gtopk(exchange, "sparse", COUNT, 0.05) == BRV_OK);
    CHECK(add_low_rank(exchange, "matrix", ROWS, COLS, 2) == BRV_OK);
    return exchange;
}

static void *save(brv_exchange *exchange, size_t *bytes)
{
    void *saved;

    CHECK(brv_exchange_saved_size(exchange, bytes) == BRV_OK && (saved = malloc(*bytes)) != NULL);
    CHECK(brv_exchange_save(exchange, saved, *bytes) == BRV_OK);
    return saved;
}

static void *save_feedback(brv_feedback *feedback, size_t *bytes)
{
    void *saved;

    CHECK(brv_feedback_saved_size(feedback, bytes) == BRV_OK && (saved = malloc(*bytes)) != NULL);
    CHECK(brv_feedback_save(feedback, saved, *bytes) == BRV_OK);
    return saved;
}

/* The sum over all ranks of what was not sent of the sparse tensor, which is exact. */
static double not_sent(brv_group *group, brv_exchange *exchange)
{
    float residual[COUNT];
    double total = 0;
    size_t i;

    CHECK(brv_exchange_residual(exchange, "sparse", residual, COUNT) == BRV_OK);
    for (i = 0; i < COUNT; i++)
        total += (double)residual[i];
    CHECK(brv_all_reduce(group, &total, &total, 1, BRV_F64, BRV_SUM, NULL) == BRV_OK);
    return total;
}

/* What the sums of all gradients of the sparse tensor must be. */
static double handed_in(uint32_t step, int32_t rank)
{
    double total = 0;
    size_t i;

    for (i = 0; i < COUNT; i++)
        total += number(step * 4 + 1, rank, i, 1000);
    return total;
}

static void loads_the_state_of_another_rank(brv_group *three, void *saved, size_t bytes, void *fed,
                                            size_t fed_bytes)
{
    float before[COUNT], after[COUNT], gradient[COUNT] = {0};
    brv_exchange *exchange = make(three);
    brv_feedback *feedback = NULL;
    int32_t rank = brv_group_rank(three);
    size_t i;

    CHECK(brv_feedback_new(&feedback) == BRV_OK);
    CHECK_FAILS(brv_exchange_load(exchange, saved, bytes), BRV_ERR_ARGUMENT, "the state of rank 3");
    CHECK_FAILS(brv_exchange_load_of(exchange, 2, saved, bytes), BRV_ERR_ARGUMENT,
                "expected the state of rank 2");
    CHECK_FAILS(brv_exchange_load_of(exchange, -1, saved, bytes), BRV_ERR_ARGUMENT, "rank is -1");
    CHECK_FAILS(brv_exchange_load_of(exchange, 3, saved, bytes - 1), BRV_ERR_ARGUMENT, "written to the end");
    CHECK_FAILS(brv_exchange_load_of(exchange, 3, NULL, bytes), BRV_ERR_ARGUMENT, "saved is NULL");
    CHECK_FAILS(brv_exchange_load_of(NULL, 3, saved, bytes), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_feedback_load(feedback, three, fed, fed_bytes), BRV_ERR_ARGUMENT, "the state of rank 3");
    CHECK_FAILS(brv_feedback_load_of(feedback, three, -7, fed, fed_bytes), BRV_ERR_ARGUMENT, "rank is -7");
    CHECK_FAILS(brv_feedback_load_of(feedback, NULL, 3, fed, fed_bytes), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_feedback_load_of(NULL, three, 3, fed, fed_bytes), BRV_ERR_ARGUMENT, "feedback is NULL");
    CHECK(brv_exchange_residual(exchange, "sparse", before, COUNT) == BRV_OK);
    for (i = 0; i < COUNT; i++)
        CHECK(before[i] == 0);

    /* One rank takes it over. The number of the exchange is the same on all, however often loading failed. */
    if (rank == 1) {
        CHECK(brv_exchange_load_of(exchange, 3, saved, bytes) == BRV_OK);
        CHECK(brv_feedback_load_of(feedback, three, 3, fed, fed_bytes) == BRV_OK);
        CHECK(brv_exchange_residual(exchange, "sparse", after, COUNT) == BRV_OK);
        CHECK(memcmp(before, after, sizeof before) != 0);
    }
    /* Moves them to their own group: low rank starts anew on all ranks. */
    CHECK(brv_exchange_rejoin(exchange, three) == BRV_OK);
    CHECK(brv_feedback_rejoin(feedback, three) == BRV_OK);
    memset(gradients, 0, sizeof gradients);
    CHECK(not_sent(three, exchange) != 0);
    CHECK(average(exchange) == BRV_OK);
    CHECK(brv_gtopk_average(three, feedback, gradient, COUNT, 0.05, NULL) == BRV_OK);
    brv_exchange_free(exchange);
    brv_feedback_free(feedback);
}

/* Rank 3 gives its states to the others, and is killed when they have them. */
static void hand_over_and_die(brv_group *group, brv_group *three, void *saved, size_t bytes, void *fed,
                              size_t fed_bytes)
{
    float last = 1;

    CHECK(brv_broadcast(group, saved, bytes, BRV_U8, 3, NULL) == BRV_OK);
    CHECK(brv_broadcast(group, fed, fed_bytes, BRV_U8, 3, NULL) == BRV_OK);
    CHECK(three == NULL || brv_barrier(three, NULL) == BRV_OK);
    if (brv_group_rank(group) == 3) {
        CHECK(brv_broadcast(group, &last, 1, BRV_F32, 0, NULL) == BRV_OK);
        raise(SIGKILL);
    }
    CHECK(brv_broadcast(group, &last, 1, BRV_F32, 0, NULL) == BRV_OK || brv_last_error_rank() == 3);
}

/* A step that fails everywhere is put back everywhere, and delivered by the next one. */
static void exchange_goes_on(brv_group *group)
{
    float ones[COUNT], zeros[COUNT] = {0}, *gradients_of[1] = {ones}, *nothing[1] = {zeros};
    brv_exchange *exchange = NULL;
    brv_group *left = NULL;
    int32_t delivered = -1;
    size_t i;

    for (i = 0; i < COUNT; i++)
        ones[i] = 1;
    CHECK(brv_exchange_new(group, &exchange) == BRV_OK && add_dense(exchange, "dense", COUNT) == BRV_OK);
    CHECK_FAILS(brv_exchange_keep_going(NULL), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK(brv_exchange_keep_going(exchange) == BRV_OK);
    CHECK(brv_exchange_average(exchange, gradients_of, 1, NULL) == BRV_OK && ones[0] == 1);
    CHECK_FAILS(brv_exchange_keep_going(exchange), BRV_ERR_ARGUMENT, "in use");
    /* Another one may have aborted it already. */
    brv_barrier(group, NULL);
    CHECK(brv_group_abort(group) == BRV_OK);
    CHECK(brv_exchange_average(exchange, gradients_of, 1, NULL) != BRV_OK && ones[COUNT - 1] == 1);
    CHECK(brv_group_shrink(group, &left, NULL) == BRV_OK && brv_group_size(left) == 3);
    CHECK_FAILS(brv_exchange_go_on(exchange, left, nothing, 1, NULL, NULL), BRV_ERR_ARGUMENT,
                "delivered is NULL");
    CHECK_FAILS(brv_exchange_go_on(exchange, NULL, nothing, 1, &delivered, NULL), BRV_ERR_ARGUMENT,
                "group is NULL");
    CHECK_FAILS(brv_exchange_go_on(exchange, left, nothing, 2, &delivered, NULL), BRV_ERR_ARGUMENT,
                "tensors is 2");
    CHECK(delivered == -1);
    CHECK(brv_exchange_go_on(exchange, left, nothing, 1, &delivered, NULL) == BRV_OK && delivered == 0);
    CHECK(zeros[0] == 0);
    CHECK(brv_exchange_average(exchange, nothing, 1, NULL) == BRV_OK && zeros[0] == 1);
    brv_exchange_free(exchange);
    brv_group_free(left);
}

/* Rank 2 is new, and gets model and state of rank 1. */
static void shares_the_state(brv_group *group)
{
    int32_t rank = brv_group_rank(group);
    brv_group *pair = split(group, rank == 2 ? BRV_NO_COLOUR : 0, 0);
    brv_exchange *exchange = make(rank == 2 ? group : pair);
    double layer[COUNT], bias, waiting;
    void *model[2] = {layer, &bias}, *twice[2] = {layer, layer};
    size_t lengths[2] = {COUNT, 1}, i;

    fill(2, rank);
    CHECK(pair == NULL || average(exchange) == BRV_OK);
    waiting = not_sent(group, exchange);
    /* The others' memory is not set. */
    for (i = 0; rank == 1 && i < COUNT; i++)
        layer[i] = bias = (double)i + 0.1;
#define SHARE(exchange, group, from, model, lengths, type)                                                   \
    brv_exchange_share_state(exchange, group, from, model, lengths, 2, type, NULL)
    CHECK_FAILS(SHARE(NULL, group, 1, model, lengths, BRV_F64), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(SHARE(exchange, group, 3, model, lengths, BRV_F64), BRV_ERR_ARGUMENT, "from is 3");
    CHECK_FAILS(SHARE(exchange, group, 1, NULL, lengths, BRV_F64), BRV_ERR_ARGUMENT, "parameters is NULL");
    CHECK_FAILS(SHARE(exchange, group, 1, model, lengths, 99), BRV_ERR_ARGUMENT, "type is 99");
    CHECK_FAILS(SHARE(exchange, group, 1, twice, lengths, BRV_F64), BRV_ERR_ARGUMENT, "parameters overlap");
    CHECK(SHARE(exchange, group, 1, model, lengths, BRV_F64) == BRV_OK);
    for (i = 0; i < COUNT; i++)
        CHECK(layer[i] == (double)i + 0.1);
    CHECK(bias == layer[COUNT - 1] && not_sent(group, exchange) == waiting && average(exchange) == BRV_OK);
    brv_exchange_free(exchange);
    brv_group_free(pair);
}

/* Those that are left of a group go on, also when one of them has closed the next one. */
static void go_on(brv_group *group)
{
    brv_group *left = NULL, *again = NULL, *other;

    CHECK(brv_group_shrink(group, &left, NULL) == BRV_OK);
    CHECK(brv_group_size(left) == 3 && brv_group_rank(left) == brv_group_rank(group));
    CHECK(brv_group_first_size(left) == 4);
    other = split(left, 0, 0);
    /* All have their sum before the abort, which would end it. */
    CHECK(sum(left, 1) == 3 && brv_barrier(other, NULL) == BRV_OK);
    brv_group_free(other);
    if (brv_group_rank(left) == 1)
        CHECK(brv_group_abort(left) == BRV_OK);
    CHECK(brv_group_shrink_any(left, &again, NULL) == BRV_OK && sum(again, 1) == 3);
    brv_group_free(left);
    shares_the_state(again);
    exchange_goes_on(again);
    brv_group_free(again);
}

static void dies(brv_group *group)
{
    int32_t rank = brv_group_rank(group), i;
    brv_group *three = split(group, rank == 3 ? BRV_NO_COLOUR : 0, -rank), *with = split(group, rank >= 2, 0);
    brv_exchange *exchange = make(group);
    brv_feedback *feedback = NULL, *unused = NULL;
    float gradient[COUNT];
    size_t bytes, fed_bytes;
    void *saved, *fed;
    double expected = 0, total = 0;
    brv_status status;

    CHECK(brv_feedback_new(&feedback) == BRV_OK && brv_feedback_new(&unused) == BRV_OK);
    fill(0, rank);
    memcpy(gradient, gradients[1], sizeof gradient);
    CHECK(average(exchange) == BRV_OK);
    for (i = 0; i < COUNT; i++)
        total += (double)gradients[1][i] * 4;
    total += not_sent(group, exchange);
    for (i = 0; i < 4; i++)
        expected += handed_in(0, i);
    CHECK(total == expected);
    CHECK(brv_gtopk_average(group, feedback, gradient, COUNT, 0.05, NULL) == BRV_OK);
    saved = save(exchange, &bytes);
    fed = save_feedback(feedback, &fed_bytes);
    hand_over_and_die(group, three, saved, bytes, fed, fed_bytes);

    /* The step that fails is in the residuals. */
    fill(1, rank);
    while ((status = brv_barrier(group, NULL)) == BRV_OK)
        ;
    CHECK(status == BRV_ERR_PEER_LOST && brv_last_error_rank() == 3);
    CHECK(average(exchange) == BRV_ERR_PEER_LOST && brv_last_error_rank() == 3);
    memcpy(gradient, gradients[1], sizeof gradient);
    CHECK(brv_gtopk_average(group, feedback, gradient, COUNT, 0.05, NULL) == BRV_ERR_PEER_LOST);
    /* Ranks 0 and 1 have another group without rank 3, rank 2 has one with it. */
    status = brv_barrier(with, NULL);
    CHECK(status == (rank == 2 ? BRV_ERR_PEER_LOST : BRV_OK));

    CHECK(brv_group_rank(three) == 2 - rank && brv_group_world_rank(three, 0) == 2);
    CHECK_FAILS(brv_gtopk_average(three, feedback, gradient, COUNT, 0.05, NULL), BRV_ERR_ARGUMENT,
                "brv_feedback_rejoin");
    CHECK_FAILS(brv_exchange_rejoin(NULL, three), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_exchange_rejoin(exchange, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_feedback_rejoin(NULL, three), BRV_ERR_ARGUMENT, "feedback is NULL");
    CHECK_FAILS(brv_feedback_rejoin(feedback, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK(brv_exchange_rejoin(exchange, three) == BRV_OK && brv_feedback_rejoin(feedback, three) == BRV_OK);
    CHECK(brv_feedback_rejoin(unused, three) == BRV_OK);
    go_on(group);
    brv_group_free(group);
    brv_group_free(with);
    /* What the three have not sent, with the step that failed, is sent or still there. */
    expected = not_sent(three, exchange);
    memset(gradients, 0, sizeof gradients);
    CHECK(average(exchange) == BRV_OK);
    for (i = 0, total = 0; i < COUNT; i++)
        total += (double)gradients[1][i] * 3;
    /* A third is rounded. */
    CHECK(fabs(total + not_sent(three, exchange) - expected) < 1);
    memset(gradient, 0, sizeof gradient);
    CHECK(brv_gtopk_average(three, feedback, gradient, COUNT, 0.1, NULL) == BRV_OK);
    loads_the_state_of_another_rank(three, saved, bytes, fed, fed_bytes);
    CHECK(brv_barrier(three, NULL) == BRV_OK);
    free(saved);
    free(fed);
    brv_exchange_free(exchange);
    brv_feedback_free(feedback);
    brv_feedback_free(unused);
    brv_group_free(three);
}

int main(int argc, char **argv)
{
    brv_group *group = join();

    CHECK(argc == 2 && brv_group_size(group) == 4);
    if (strcmp(argv[1], "dies") == 0) {
        dies(group);
        return 0;
    }
    if (strcmp(argv[1], "exhausts") == 0) {
        exhaust(group);
    } else {
        misuse(group);
        splits(group);
    }
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
