/* Saved feedbacks: results after a load have the same bits as without it, and bytes that are not a saved
 * state are refused. */
#include <float.h>

#include "check.h"

enum { ROWS = 40, COLS = 30, COUNT = ROWS * COLS, STEPS = 3 };

/* How a tensor is averaged. */
enum method { GTOPK, LOW_RANK };

/* The result of the last step. */
static float average[COUNT];

/* One step with gradients that depend only on its number and the rank. */
static brv_status step(brv_group *group, brv_feedback *feedback, enum method method, uint32_t number_of_step)
{
    static float gradient[COUNT];
    brv_status status;
    size_t i;

    for (i = 0; i < COUNT; i++)
        gradient[i] = (float)number(number_of_step, brv_group_rank(group), i, 1000) / 7;
    if (method == GTOPK)
        status = brv_gtopk_average(group, feedback, gradient, COUNT, 0.05, NULL);
    else
        status = brv_low_rank_average(group, feedback, gradient, ROWS, COLS, 2, NULL);
    for (i = 0; i < COUNT; i++)
        average[i] = gradient[i];
    return status;
}

static unsigned char *save(const brv_feedback *feedback, size_t *bytes)
{
    unsigned char *saved;

    CHECK(brv_feedback_saved_size(feedback, bytes) == BRV_OK && *bytes > COUNT * sizeof(float));
    saved = malloc(*bytes);
    CHECK(saved != NULL && brv_feedback_save(feedback, saved, *bytes) == BRV_OK);
    return saved;
}

/* Whether the two have the same residual. */
static int alike(const brv_feedback *one, const brv_feedback *other)
{
    static float first[COUNT], second[COUNT];

    CHECK(brv_feedback_residual(one, first, COUNT) == BRV_OK);
    CHECK(brv_feedback_residual(other, second, COUNT) == BRV_OK);
    return memcmp(first, second, sizeof first) == 0;
}

static void goes_on(brv_group *group, enum method method)
{
    static float expected[COUNT];
    brv_feedback *feedback = NULL, *restarted = NULL, *again = NULL;
    unsigned char *saved;
    size_t bytes;
    uint32_t i;

    CHECK(brv_feedback_new(&feedback) == BRV_OK && brv_feedback_new(&restarted) == BRV_OK);
    for (i = 0; i < STEPS; i++)
        CHECK(step(group, feedback, method, i) == BRV_OK);
    saved = save(feedback, &bytes);
    CHECK(brv_feedback_load(restarted, group, saved, bytes) == BRV_OK && alike(feedback, restarted));
    for (i = STEPS; i < 2 * STEPS; i++) {
        CHECK(step(group, feedback, method, i) == BRV_OK);
        memcpy(expected, average, sizeof expected);
        CHECK(step(group, restarted, method, i) == BRV_OK);
        CHECK(memcmp(expected, average, sizeof expected) == 0);
    }
    CHECK(alike(feedback, restarted));
    /* A feedback in use goes back to what was saved. */
    CHECK(brv_feedback_new(&again) == BRV_OK && brv_feedback_load(again, group, saved, bytes) == BRV_OK);
    CHECK(!alike(restarted, again) && brv_feedback_load(restarted, group, saved, bytes) == BRV_OK);
    CHECK(alike(restarted, again));
    free(saved);
    brv_feedback_free(feedback);
    brv_feedback_free(restarted);
    brv_feedback_free(again);
}

/* A refusal changes neither a used feedback nor a new one. */
static void refused(brv_group *group, brv_feedback *used, const brv_feedback *witness,
                    const unsigned char *saved, size_t bytes, const char *words)
{
    brv_feedback *fresh = NULL;
    float residual[1];

    CHECK_FAILS(brv_feedback_load(used, group, saved, bytes), BRV_ERR_ARGUMENT, words);
    CHECK(alike(used, witness));
    CHECK(brv_feedback_new(&fresh) == BRV_OK);
    CHECK_FAILS(brv_feedback_load(fresh, group, saved, bytes), BRV_ERR_ARGUMENT, words);
    CHECK_FAILS(brv_feedback_residual(fresh, residual, 1), BRV_ERR_ARGUMENT, "used");
    brv_feedback_free(fresh);
}

static void damage(brv_group *group, enum method method)
{
    brv_feedback *feedback = NULL, *witness = NULL;
    unsigned char *saved;
    size_t bytes, i;

    CHECK(brv_feedback_new(&feedback) == BRV_OK && brv_feedback_new(&witness) == BRV_OK);
    CHECK(step(group, feedback, method, 1) == BRV_OK);
    saved = save(feedback, &bytes);
    CHECK(brv_feedback_load(witness, group, saved, bytes) == BRV_OK);
    /* Every bit before the residual, and some of its bits. */
    for (i = 0; i < 8 * bytes; i += i < 8 * 400 ? 1 : 977) {
        saved[i / 8] ^= (unsigned char)(1 << i % 8);
        refused(group, feedback, witness, saved, bytes, "saved state");
        saved[i / 8] ^= (unsigned char)(1 << i % 8);
    }
    for (i = 0; i < bytes; i += i < 400 ? 1 : 61)
        refused(group, feedback, witness, saved, i, "was it written to the end");
    refused(group, feedback, witness, NULL, 0, "was it written to the end");
    saved = realloc(saved, bytes + 3);
    CHECK(saved != NULL);
    memcpy(saved + bytes, "end", 3);
    refused(group, feedback, witness, saved, bytes + 3, "3 bytes follow the saved state");
    CHECK(brv_feedback_load(feedback, group, saved, bytes) == BRV_OK && alike(feedback, witness));
    free(saved);
    brv_feedback_free(feedback);
    brv_feedback_free(witness);
}

static void arguments(brv_group *group)
{
    static float gradient[COUNT];
    brv_feedback *feedback = NULL, *fresh = NULL;
    brv_group *another = NULL;
    unsigned char *saved, *other;
    size_t bytes, other_bytes = 7;

    CHECK(brv_feedback_new(&feedback) == BRV_OK && brv_feedback_new(&fresh) == BRV_OK);
    CHECK_FAILS(brv_feedback_saved_size(fresh, &other_bytes), BRV_ERR_ARGUMENT, "used");
    CHECK_FAILS(brv_feedback_save(fresh, gradient, sizeof gradient), BRV_ERR_ARGUMENT, "used");
    CHECK_FAILS(brv_feedback_saved_size(NULL, &other_bytes), BRV_ERR_ARGUMENT, "feedback is NULL");
    CHECK(other_bytes == 7);
    CHECK(step(group, feedback, GTOPK, 1) == BRV_OK);
    CHECK_FAILS(brv_feedback_saved_size(feedback, NULL), BRV_ERR_ARGUMENT, "bytes is NULL");
    saved = save(feedback, &bytes);
    CHECK_FAILS(brv_feedback_save(feedback, saved, bytes - 1), BRV_ERR_ARGUMENT, "brv_feedback_saved_size");
    CHECK_FAILS(brv_feedback_save(feedback, NULL, bytes), BRV_ERR_ARGUMENT, "out is NULL");
    CHECK_FAILS(brv_feedback_load(feedback, group, NULL, bytes), BRV_ERR_ARGUMENT, "saved is NULL");
    CHECK_FAILS(brv_feedback_load(feedback, NULL, saved, bytes), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_feedback_load(NULL, group, saved, bytes), BRV_ERR_ARGUMENT, "feedback is NULL");
    CHECK(brv_group_solo(&another) == BRV_OK);

    /* Another shape, another method, another group. */
    CHECK(brv_gtopk_average(another, fresh, gradient, COUNT - 1, 0.5, NULL) == BRV_OK);
    other = save(fresh, &other_bytes);
    CHECK_FAILS(brv_feedback_load(fresh, another, saved, bytes), BRV_ERR_ARGUMENT, "gTop-k of 1199 elements");
    CHECK_FAILS(brv_feedback_load(feedback, group, other, other_bytes), BRV_ERR_ARGUMENT,
                "gTop-k of 1200 elements");
    free(other);
    brv_feedback_free(fresh);
    CHECK(brv_feedback_new(&fresh) == BRV_OK);
    CHECK(brv_low_rank_average(group, fresh, gradient, ROWS, COLS, 2, NULL) == BRV_OK);
    CHECK_FAILS(brv_feedback_load(fresh, group, saved, bytes), BRV_ERR_ARGUMENT,
                "rank 2 of a 40 x 30 matrix");
    CHECK_FAILS(brv_feedback_load(feedback, another, saved, bytes), BRV_ERR_ARGUMENT, "another group");
    brv_feedback_free(fresh);
    /* The loaded feedback continues like the saved one. */
    CHECK(brv_feedback_new(&fresh) == BRV_OK && brv_feedback_load(fresh, another, saved, bytes) == BRV_OK);
    CHECK_FAILS(brv_gtopk_average(another, fresh, gradient, 7, 0.5, NULL), BRV_ERR_ARGUMENT,
                "gTop-k of 1200 elements");
    free(saved);
    brv_feedback_free(fresh);
    brv_feedback_free(feedback);
    brv_group_free(another);
}

/* A rank refuses the state of another rank. */
static void another_rank(brv_group *group)
{
    brv_feedback *feedback = NULL, *witness = NULL;
    unsigned char *saved;
    uint64_t bytes_of_first;
    size_t bytes;

    CHECK(brv_feedback_new(&feedback) == BRV_OK && brv_feedback_new(&witness) == BRV_OK);
    CHECK(step(group, feedback, GTOPK, 1) == BRV_OK);
    saved = save(feedback, &bytes);
    CHECK(brv_feedback_load(witness, group, saved, bytes) == BRV_OK);
    bytes_of_first = bytes;
    CHECK(brv_broadcast(group, &bytes_of_first, 1, BRV_U64, 0, NULL) == BRV_OK && bytes_of_first == bytes);
    CHECK(brv_broadcast(group, saved, bytes, BRV_U8, 0, NULL) == BRV_OK);
    if (brv_group_rank(group) > 0)
        refused(group, feedback, witness, saved, bytes, "the state of rank 0");
    free(saved);
    brv_feedback_free(feedback);
    brv_feedback_free(witness);
}

/* A feedback takes over what another one has saved: the residuals add up, exactly for whole numbers. */
static void takes_over(brv_group *group, enum method method)
{
    static float first[COUNT], second[COUNT], both[COUNT];
    brv_feedback *feedback = NULL, *other = NULL, *witness = NULL, *fresh = NULL;
    unsigned char *saved, *later;
    size_t bytes, i;

    CHECK(brv_feedback_new(&feedback) == BRV_OK && brv_feedback_new(&other) == BRV_OK);
    CHECK(brv_feedback_new(&witness) == BRV_OK && brv_feedback_new(&fresh) == BRV_OK);
    CHECK(step(group, feedback, method, 1) == BRV_OK && step(group, other, method, 2) == BRV_OK);
    saved = save(feedback, &bytes);
    CHECK(brv_feedback_load(witness, group, saved, bytes) == BRV_OK);
    free(saved);
    saved = save(other, &bytes);
    CHECK(brv_feedback_residual(feedback, first, COUNT) == BRV_OK);
    CHECK(brv_feedback_residual(other, second, COUNT) == BRV_OK);

    CHECK_FAILS(brv_feedback_take_over(feedback, group, -1, saved, bytes), BRV_ERR_ARGUMENT, "rank is -1");
    CHECK_FAILS(brv_feedback_take_over(feedback, group, 1, saved, bytes), BRV_ERR_ARGUMENT,
                "the state of rank 0, expected the state of rank 1");
    CHECK_FAILS(brv_feedback_take_over(feedback, group, 0, NULL, bytes), BRV_ERR_ARGUMENT, "saved is NULL");
    CHECK_FAILS(brv_feedback_take_over(feedback, NULL, 0, saved, bytes), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_feedback_take_over(NULL, group, 0, saved, bytes), BRV_ERR_ARGUMENT, "feedback is NULL");
    for (i = 0; i < 8 * bytes; i += i < 8 * 400 ? 3 : 977) {
        saved[i / 8] ^= (unsigned char)(1 << i % 8);
        CHECK_FAILS(brv_feedback_take_over(feedback, group, 0, saved, bytes), BRV_ERR_ARGUMENT,
                    "saved state");
        saved[i / 8] ^= (unsigned char)(1 << i % 8);
    }
    for (i = 0; i < bytes; i += i < 400 ? 7 : 61)
        CHECK_FAILS(brv_feedback_take_over(feedback, group, 0, saved, i), BRV_ERR_ARGUMENT,
                    "was it written to the end");
    saved = realloc(saved, bytes + 3);
    CHECK(saved != NULL);
    memcpy(saved + bytes, "end", 3);
    CHECK_FAILS(brv_feedback_take_over(feedback, group, 0, saved, bytes + 3), BRV_ERR_ARGUMENT,
                "3 bytes follow the saved state");
    CHECK(step(group, other, method, 3) == BRV_OK);
    later = save(other, &bytes);
    CHECK_FAILS(brv_feedback_take_over(feedback, group, 0, later, bytes), BRV_ERR_ARGUMENT,
                "after 2 steps, expected 1");
    CHECK(alike(feedback, witness));

    CHECK(brv_feedback_take_over(feedback, group, 0, saved, bytes) == BRV_OK);
    CHECK(brv_feedback_residual(feedback, both, COUNT) == BRV_OK);
    for (i = 0; i < COUNT; i++)
        CHECK(both[i] == first[i] + second[i]);
    /* One that is new takes over any state. */
    CHECK(brv_feedback_take_over(fresh, group, 0, later, bytes) == BRV_OK && alike(fresh, other));
    CHECK(step(group, feedback, method, 4) == BRV_OK && step(group, fresh, method, 4) == BRV_OK);
    free(saved);
    free(later);
    brv_feedback_free(feedback);
    brv_feedback_free(other);
    brv_feedback_free(witness);
    brv_feedback_free(fresh);
}

/* Sums that are not finite change nothing. */
static void overflows(brv_group *group)
{
    static float gradient[COUNT];
    brv_feedback *feedback = NULL, *witness = NULL;
    unsigned char *saved;
    size_t bytes, i;

    for (i = 0; i < COUNT; i++)
        gradient[i] = FLT_MAX;
    CHECK(brv_feedback_new(&feedback) == BRV_OK && brv_feedback_new(&witness) == BRV_OK);
    CHECK(brv_gtopk_average(group, feedback, gradient, COUNT, 0.05, NULL) == BRV_OK);
    saved = save(feedback, &bytes);
    CHECK(brv_feedback_load(witness, group, saved, bytes) == BRV_OK);
    CHECK_FAILS(brv_feedback_take_over(feedback, group, 0, saved, bytes), BRV_ERR_NON_FINITE,
                "let another rank take it over");
    CHECK(alike(feedback, witness));
    free(saved);
    brv_feedback_free(feedback);
    brv_feedback_free(witness);
}

/* The same for a list of tensors. */
static void exchange_takes_over(brv_group *group)
{
    const char *const names[] = {"dense", "sparse", "matrix"};
    static float gradients[3][COUNT], once[COUNT], twice[COUNT];
    float *all[3] = {gradients[0], gradients[1], gradients[2]};
    brv_exchange *used = NULL, *exchange = NULL;
    unsigned char *saved;
    size_t bytes, tensor, i;

    CHECK(brv_exchange_new(group, &used) == BRV_OK && brv_exchange_new(group, &exchange) == BRV_OK);
    CHECK(add_dense(used, "dense", COUNT) == BRV_OK && add_dense(exchange, "dense", COUNT) == BRV_OK);
    CHECK(add_gtopk(used, "sparse", COUNT, 0.05) == BRV_OK);
    CHECK(add_gtopk(exchange, "sparse", COUNT, 0.05) == BRV_OK);
    CHECK(add_low_rank(used, "matrix", ROWS, COLS, 2) == BRV_OK);
    for (tensor = 0; tensor < 3; tensor++)
        for (i = 0; i < COUNT; i++)
            gradients[tensor][i] = (float)number((uint32_t)tensor, 0, i, 1000);
    CHECK(brv_exchange_average(used, all, 3, NULL) == BRV_OK);
    CHECK(brv_exchange_saved_size(used, &bytes) == BRV_OK && (saved = calloc(bytes + 1, 1)) != NULL);
    CHECK(brv_exchange_save(used, saved, bytes) == BRV_OK);

    CHECK_FAILS(brv_exchange_take_over(exchange, 0, saved, bytes), BRV_ERR_ARGUMENT, "saved state");
    /* It has not been used yet. */
    CHECK(add_low_rank(exchange, "matrix", ROWS, COLS, 2) == BRV_OK);
    CHECK(brv_exchange_take_over(exchange, 0, saved, bytes) == BRV_OK);
    CHECK_FAILS(brv_exchange_take_over(exchange, 1, saved, bytes), BRV_ERR_ARGUMENT,
                "the state of rank 0, expected the state of rank 1");
    CHECK_FAILS(brv_exchange_take_over(exchange, -1, saved, bytes), BRV_ERR_ARGUMENT, "rank is -1");
    CHECK_FAILS(brv_exchange_take_over(exchange, 0, saved, bytes - 1), BRV_ERR_ARGUMENT,
                "written to the end");
    CHECK_FAILS(brv_exchange_take_over(exchange, 0, saved, bytes + 1), BRV_ERR_ARGUMENT,
                "1 bytes follow the saved state");
    CHECK_FAILS(brv_exchange_take_over(exchange, 0, NULL, bytes), BRV_ERR_ARGUMENT, "saved is NULL");
    CHECK_FAILS(brv_exchange_take_over(NULL, 0, saved, bytes), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK(brv_exchange_take_over(exchange, 0, saved, bytes) == BRV_OK);
    for (tensor = 0; tensor < 3; tensor++) {
        CHECK(brv_exchange_residual(used, names[tensor], once, COUNT) == BRV_OK);
        CHECK(brv_exchange_residual(exchange, names[tensor], twice, COUNT) == BRV_OK);
        for (i = 0; i < COUNT; i++)
            CHECK(twice[i] == 2 * once[i]);
    }
    CHECK(brv_exchange_average(exchange, all, 3, NULL) == BRV_OK);
    free(saved);
    brv_exchange_free(used);
    brv_exchange_free(exchange);
}

int main(void)
{
    brv_group *group = join(), *alone = NULL;

    goes_on(group, GTOPK);
    goes_on(group, LOW_RANK);
    another_rank(group);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);

    CHECK(brv_group_solo(&alone) == BRV_OK);
    damage(alone, GTOPK);
    damage(alone, LOW_RANK);
    takes_over(alone, GTOPK);
    takes_over(alone, LOW_RANK);
    overflows(alone);
    exchange_takes_over(alone);
    arguments(alone);
    brv_group_free(alone);
    return 0;
}
