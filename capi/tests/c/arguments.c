/* Every invalid argument is refused, with a text that says what was expected, and no memory is touched. */
#define _DEFAULT_SOURCE
#include "check.h"
#include <sys/mman.h>

static void null_handles(void)
{
    float value = 1;

    CHECK(strcmp(brv_last_error(), "") == 0 && brv_last_error_rank() == -1);
    CHECK(brv_group_rank(NULL) == -1 && brv_group_size(NULL) == -1);
    CHECK(strcmp(brv_group_transport(NULL), "") == 0);
    CHECK_FAILS(brv_group_join(NULL, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_group_solo(NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_group_abort(NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_feedback_new(NULL), BRV_ERR_ARGUMENT, "feedback is NULL");
    CHECK_FAILS(brv_barrier(NULL, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_broadcast(NULL, &value, 1, BRV_F32, 0, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_all_reduce(NULL, &value, &value, 1, BRV_F32, BRV_SUM, NULL), BRV_ERR_ARGUMENT,
                "group is NULL");
    CHECK_FAILS(brv_all_gather(NULL, &value, &value, 1, BRV_F32, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_gtopk_average(NULL, NULL, &value, 1, 0.5, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_low_rank_average(NULL, NULL, &value, 1, 1, 1, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_feedback_residual(NULL, &value, 1), BRV_ERR_ARGUMENT, "feedback is NULL");
    brv_group_free(NULL);
    brv_feedback_free(NULL);
    CHECK(value == 1);
}

static void arrays(brv_group *group)
{
    float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    void *crooked = (char *)values + 1;

    CHECK_FAILS(brv_all_reduce(group, NULL, values, 1, BRV_F32, BRV_SUM, NULL), BRV_ERR_ARGUMENT,
                "in is NULL");
    CHECK_FAILS(brv_all_reduce(group, values, NULL, 1, BRV_F32, BRV_SUM, NULL), BRV_ERR_ARGUMENT,
                "out is NULL");
    CHECK_FAILS(brv_all_reduce(group, crooked, crooked, 1, BRV_F32, BRV_SUM, NULL), BRV_ERR_ARGUMENT,
                "multiple of 4");
    CHECK_FAILS(brv_all_reduce(group, values, values + 1, 2, BRV_F32, BRV_SUM, NULL), BRV_ERR_ARGUMENT,
                "overlap");
    CHECK_FAILS(brv_all_reduce(group, values + 1, values, 2, BRV_F32, BRV_SUM, NULL), BRV_ERR_ARGUMENT,
                "overlap");
    CHECK_FAILS(brv_all_reduce(group, values, values, SIZE_MAX / 2, BRV_F32, BRV_SUM, NULL), BRV_ERR_ARGUMENT,
                "check n");
    CHECK(brv_all_gather(group, values, values, 2, BRV_F32, NULL) == BRV_OK);
    CHECK_FAILS(brv_all_gather(group, values + 1, values, 2, BRV_F32, NULL), BRV_ERR_ARGUMENT,
                "this rank's block of all as own");
    CHECK_FAILS(brv_all_gather(group, values, values + 1, 2, BRV_F32, NULL), BRV_ERR_ARGUMENT, "overlap");
    CHECK_FAILS(brv_all_gather(group, NULL, values, 1, BRV_F32, NULL), BRV_ERR_ARGUMENT, "own is NULL");
    CHECK_FAILS(brv_all_gather(group, values, NULL, 1, BRV_F32, NULL), BRV_ERR_ARGUMENT, "all is NULL");
    CHECK_FAILS(brv_broadcast(group, NULL, 1, BRV_F32, 0, NULL), BRV_ERR_ARGUMENT, "data is NULL");
    CHECK(brv_all_reduce(group, NULL, NULL, 0, BRV_F32, BRV_SUM, NULL) == BRV_OK);
    CHECK(brv_all_gather(group, NULL, NULL, 0, BRV_F64, NULL) == BRV_OK);
    CHECK(brv_broadcast(group, NULL, 0, BRV_U8, 0, NULL) == BRV_OK);
    CHECK(values[0] == 1 && values[1] == 2 && values[2] == 3);
}

/* If out is not in, not a byte of it is written. */
static void untouched(brv_group *group)
{
    int32_t in[4] = {1, 2, 3, 4};
    unsigned char out[64], pattern[64];
    size_t i;

    for (i = 0; i < sizeof out; i++)
        out[i] = pattern[i] = (unsigned char)(i * 7 + 1);
    CHECK_FAILS(brv_all_reduce(group, in, out, 4, BRV_I32, BRV_AVERAGE, NULL), BRV_ERR_ARGUMENT,
                "not defined for i32");
    CHECK_FAILS(brv_all_reduce(group, in, out, 4, BRV_U8, BRV_AVERAGE, NULL), BRV_ERR_ARGUMENT,
                "not defined for u8");
    CHECK_FAILS(brv_all_reduce(group, in, out, 4, BRV_I32, (brv_reduction)0, NULL), BRV_ERR_ARGUMENT,
                "reduction is 0");
    CHECK_FAILS(brv_all_reduce(group, in, out, 4, (brv_type)99, BRV_SUM, NULL), BRV_ERR_ARGUMENT,
                "type is 99");
    CHECK_FAILS(brv_all_reduce(group, NULL, out, 4, BRV_I32, BRV_SUM, NULL), BRV_ERR_ARGUMENT, "in is NULL");
    CHECK_FAILS(brv_all_reduce(group, (char *)in + 1, out, 3, BRV_I32, BRV_SUM, NULL), BRV_ERR_ARGUMENT,
                "multiple of 4");
    CHECK_FAILS(brv_all_reduce(group, out, out + 4, 4, BRV_I32, BRV_SUM, NULL), BRV_ERR_ARGUMENT, "overlap");
    CHECK_FAILS(brv_all_reduce(group, in, out, SIZE_MAX / 2, BRV_I32, BRV_SUM, NULL), BRV_ERR_ARGUMENT,
                "check n");
    CHECK_FAILS(brv_all_reduce(NULL, in, out, 4, BRV_I32, BRV_SUM, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_all_gather(group, NULL, out, 4, BRV_I32, NULL), BRV_ERR_ARGUMENT, "own is NULL");
    CHECK_FAILS(brv_all_gather(group, in, out, 4, (brv_type)0, NULL), BRV_ERR_ARGUMENT, "type is 0");
    CHECK_FAILS(brv_all_gather(group, out, out + 4, 4, BRV_I32, NULL), BRV_ERR_ARGUMENT, "overlap");
    CHECK_FAILS(brv_all_gather(group, in, out, SIZE_MAX / 2, BRV_I32, NULL), BRV_ERR_ARGUMENT, "check n");
    CHECK_FAILS(brv_broadcast(group, out, 4, BRV_I32, 7, NULL), BRV_ERR_ARGUMENT, "root is 7");
    CHECK_FAILS(brv_broadcast(group, out, 4, (brv_type)99, 0, NULL), BRV_ERR_ARGUMENT, "type is 99");
    CHECK(memcmp(out, pattern, sizeof out) == 0);
}

/* Options are read by every call that takes them, before anything else is done, and their name is told. */
static void options(brv_group *group)
{
    brv_options wrong = BRV_OPTIONS_INIT, named = BRV_OPTIONS_INIT;
    brv_group *part = group, *other = group;
    brv_feedback *feedback = NULL;
    brv_exchange *exchange = NULL;
    float value = 1, *pointer = &value;

    CHECK(brv_feedback_new(&feedback) == BRV_OK && brv_exchange_new(group, &exchange) == BRV_OK);
    wrong.size = 8;
#define REFUSES(call) CHECK_FAILS(call, BRV_ERR_ARGUMENT, "options.size is 8")
    REFUSES(brv_barrier(group, &wrong));
    REFUSES(brv_broadcast(group, &value, 1, BRV_F32, 0, &wrong));
    REFUSES(brv_all_reduce(group, &value, &value, 1, BRV_F32, BRV_SUM, &wrong));
    REFUSES(brv_all_gather(group, &value, &value, 1, BRV_F32, &wrong));
    REFUSES(brv_gtopk_average(group, feedback, &value, 1, 1, &wrong));
    REFUSES(brv_low_rank_average(group, feedback, &value, 1, 1, 1, &wrong));
    REFUSES(brv_exchange_average(exchange, &pointer, 0, &wrong));
    REFUSES(brv_group_split(group, 0, 0, &part, &wrong));
    CHECK(part == NULL);
    REFUSES(brv_group_duplicate(group, &part, &wrong));
    part = group;
    REFUSES(brv_group_hosts(group, &part, &other, &wrong));
    CHECK(part == NULL && other == NULL);

    named.name = "layer1.weight";
    named.timeout = 30;
    CHECK(brv_all_reduce(group, &value, &value, 1, BRV_F32, BRV_SUM, &named) == BRV_OK);
    CHECK_FAILS(brv_all_reduce(group, &value, NULL, 1, BRV_F32, BRV_SUM, &named), BRV_ERR_ARGUMENT,
                "layer1.weight: out is NULL");
    CHECK_FAILS(brv_group_split(group, -3, 0, &part, &named), BRV_ERR_ARGUMENT,
                "layer1.weight: colour is -3");
    brv_exchange_free(exchange);
    brv_feedback_free(feedback);
}

static void statuses(void)
{
    CHECK(strcmp(brv_status_string(BRV_OK), "BRV_OK") == 0);
    CHECK(strcmp(brv_status_string(BRV_ERR_TRUNCATED), "BRV_ERR_TRUNCATED") == 0);
    CHECK(strcmp(brv_status_string(BRV_PENDING), "BRV_PENDING") == 0);
    CHECK(strcmp(brv_status_string(BRV_STATUS_MAX), "unknown status") == 0);
    CHECK(sizeof(brv_status) == 4 && sizeof(brv_type) == 4 && sizeof(brv_method) == 4);
}

/* A vector so large that memory can't hold a second one: a group of one needs none. */
static void huge(brv_group *group)
{
    const size_t bytes = (size_t)1 << 46;
    void *all = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (all == MAP_FAILED) {
        printf("skipped: no address space for a huge vector\n");
        return;
    }
    CHECK(brv_all_reduce(group, all, all, bytes / 4, BRV_F32, BRV_SUM, NULL) == BRV_OK);
    CHECK(munmap(all, bytes) == 0);
}

/* A group of one is closed for good, too. */
static void closed(void)
{
    float value = 1, out[4] = {9, 9, 9, 9};
    brv_group *group = NULL;
    brv_feedback *feedback = NULL;

    CHECK(brv_group_solo(&group) == BRV_OK && brv_feedback_new(&feedback) == BRV_OK);
    CHECK(brv_barrier(group, NULL) == BRV_OK && brv_group_abort(group) == BRV_OK);
    CHECK_FAILS(brv_barrier(group, NULL), BRV_ERR_ABORTED, "rank 0 aborted");
    CHECK(brv_last_error_rank() == 0);
    CHECK_FAILS(brv_all_reduce(group, &value, &value, 1, BRV_F32, BRV_SUM, NULL), BRV_ERR_ABORTED, "aborted");
    CHECK_FAILS(brv_all_gather(group, &value, out, 1, BRV_F32, NULL), BRV_ERR_ABORTED, "aborted");
    CHECK_FAILS(brv_broadcast(group, &value, 1, BRV_F32, 0, NULL), BRV_ERR_ABORTED, "aborted");
    CHECK_FAILS(brv_gtopk_average(group, feedback, out, 4, 0.5, NULL), BRV_ERR_ABORTED, "aborted");
    brv_feedback_free(feedback);
    CHECK(brv_feedback_new(&feedback) == BRV_OK);
    CHECK_FAILS(brv_low_rank_average(group, feedback, out, 2, 2, 1, NULL), BRV_ERR_ABORTED, "aborted");
    brv_feedback_free(feedback);
    brv_group_free(group);
}

static void numbers(brv_group *group)
{
    int32_t integer = 3;
    float value = 1;

    CHECK_FAILS(brv_all_reduce(group, &value, &value, 1, (brv_type)0, BRV_SUM, NULL), BRV_ERR_ARGUMENT,
                "type is 0");
    CHECK_FAILS(brv_all_reduce(group, &value, &value, 1, (brv_type)15, BRV_SUM, NULL), BRV_ERR_ARGUMENT,
                "type is 15, expected a brv_type (1 to 14)");
    CHECK_FAILS(brv_all_reduce(group, &value, &value, 1, BRV_F32, (brv_reduction)9, NULL), BRV_ERR_ARGUMENT,
                "reduction is 9, expected a brv_reduction (1 to 8)");
    CHECK_FAILS(brv_all_reduce(group, &integer, &integer, 1, BRV_I32, BRV_AVERAGE, NULL), BRV_ERR_ARGUMENT,
                "average is not defined for i32");
    CHECK_FAILS(brv_broadcast(group, &value, 1, BRV_F32, 1, NULL), BRV_ERR_ARGUMENT, "root is 1");
    CHECK_FAILS(brv_broadcast(group, &value, 1, BRV_F32, -1, NULL), BRV_ERR_ARGUMENT, "root is -1");
    CHECK(integer == 3 && value == 1);
}

static void feedbacks(brv_group *group)
{
    static float matrix[64 * 64];
    float residual[8], gradient[8] = {8, 7, 6, 5, 4, 3, 2, 1};
    double densities[4] = {0, -0.5, 1.5, NAN};
    brv_feedback *feedback = NULL, *other = NULL;
    brv_group *another = NULL;
    int i;

    CHECK(brv_feedback_new(&feedback) == BRV_OK && brv_feedback_new(&other) == BRV_OK);
    CHECK_FAILS(brv_gtopk_average(group, NULL, gradient, 8, 0.5, NULL), BRV_ERR_ARGUMENT, "brv_feedback_new");
    CHECK_FAILS(brv_gtopk_average(group, feedback, NULL, 8, 0.5, NULL), BRV_ERR_ARGUMENT, "gradient is NULL");
    CHECK_FAILS(brv_feedback_residual(feedback, residual, 8), BRV_ERR_ARGUMENT, "used");
    for (i = 0; i < 4; i++)
        CHECK_FAILS(brv_gtopk_average(group, feedback, gradient, 8, densities[i], NULL), BRV_ERR_ARGUMENT,
                    "density");
    CHECK(gradient[0] == 8 && gradient[7] == 1);

    CHECK(brv_gtopk_average(group, feedback, gradient, 8, 0.25, NULL) == BRV_OK);
    for (i = 0; i < 8; i++)
        CHECK(gradient[i] == (i < 2 ? 8 - i : 0));
    CHECK_FAILS(brv_gtopk_average(group, feedback, gradient, 7, 0.25, NULL), BRV_ERR_ARGUMENT,
                "gTop-k of 8 elements");
    CHECK_FAILS(brv_low_rank_average(group, feedback, gradient, 2, 4, 1, NULL), BRV_ERR_ARGUMENT,
                "gTop-k of 8");
    for (i = 0; i < 4; i++)
        CHECK_FAILS(brv_gtopk_average(group, feedback, gradient, 8, densities[i], NULL), BRV_ERR_ARGUMENT,
                    "density");
    CHECK_FAILS(brv_feedback_residual(feedback, residual, 7), BRV_ERR_ARGUMENT, "expected 8");
    CHECK_FAILS(brv_feedback_residual(feedback, NULL, 8), BRV_ERR_ARGUMENT, "out is NULL");
    CHECK(brv_feedback_residual(feedback, residual, 8) == BRV_OK);
    for (i = 0; i < 8; i++)
        CHECK(residual[i] == (i < 2 ? 0 : 8 - i));
    CHECK(brv_group_solo(&another) == BRV_OK);
    CHECK_FAILS(brv_gtopk_average(another, feedback, gradient, 8, 0.25, NULL), BRV_ERR_ARGUMENT,
                "another group");

    CHECK_FAILS(brv_low_rank_average(group, NULL, matrix, 64, 64, 2, NULL), BRV_ERR_ARGUMENT,
                "feedback is NULL");
    CHECK_FAILS(brv_low_rank_average(group, other, matrix, 64, 64, 0, NULL), BRV_ERR_ARGUMENT, "rank is 0");
    CHECK_FAILS(brv_low_rank_average(group, other, matrix, SIZE_MAX, 2, 1, NULL), BRV_ERR_ARGUMENT,
                "check rows");
    CHECK(brv_low_rank_average(group, other, matrix, 64, 64, 2, NULL) == BRV_OK);
    CHECK_FAILS(brv_low_rank_average(group, other, matrix, 64, 64, 3, NULL), BRV_ERR_ARGUMENT,
                "rank 2 of a 64 x 64");
    CHECK_FAILS(brv_low_rank_average(group, other, matrix, 32, 128, 2, NULL), BRV_ERR_ARGUMENT,
                "rank 2 of a 64 x 64");

    brv_feedback_free(other);
    brv_group_free(another);
    brv_feedback_free(feedback);
}

static void nothing(brv_group *group)
{
    brv_feedback *feedback = NULL, *other = NULL;

    CHECK(brv_feedback_new(&feedback) == BRV_OK && brv_feedback_new(&other) == BRV_OK);
    CHECK(brv_gtopk_average(group, feedback, NULL, 0, 0.5, NULL) == BRV_OK);
    CHECK(brv_gtopk_average(group, feedback, NULL, 0, 1.0, NULL) == BRV_OK);
    CHECK(brv_feedback_residual(feedback, NULL, 0) == BRV_OK);
    CHECK(brv_low_rank_average(group, other, NULL, 0, 64, 2, NULL) == BRV_OK);
    CHECK(brv_feedback_residual(other, NULL, 0) == BRV_OK);
    brv_feedback_free(feedback);
    brv_feedback_free(other);
}

int main(void)
{
    brv_group *group = NULL;

    CHECK(strcmp(brv_version(), BRV_VERSION) == 0 && brv_abi_version() == BRV_ABI_VERSION);
    null_handles();
    CHECK(brv_group_solo(&group) == BRV_OK);
    CHECK(brv_group_rank(group) == 0 && brv_group_size(group) == 1);
    CHECK(strcmp(brv_group_transport(group), "") != 0);
    arrays(group);
    untouched(group);
    options(group);
    statuses();
    huge(group);
    closed();
    numbers(group);
    feedbacks(group);
    nothing(group);
    CHECK(brv_group_abort(group) == BRV_OK);
    brv_group_free(group);
    return 0;
}
