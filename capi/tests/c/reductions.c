/* Reductions of the program. */
#include "dense.h"
#include "dense_list.h"

enum { N = 1001 };

/* A value and where it is. */
typedef struct place {
    int32_t value, index;
} place;

/* Elements whose size no type has. */
typedef struct triple {
    int32_t parts[3];
} triple;

/* What a function is called with. */
typedef struct context {
    brv_group *group;
    volatile int calls, fails;
} context;

/* The place with the larger value; of equal ones the first. */
static int larger(void *into, const void *from, size_t bytes, void *user_data)
{
    place *mine = into;
    const place *other = from;
    size_t i;

    CHECK(bytes % sizeof *mine == 0 && bytes > 0 && (uintptr_t)into % 4 == 0 && (uintptr_t)from % 4 == 0);
    for (i = 0; i < bytes / sizeof *mine; i++)
        if (other[i].value != mine[i].value ? other[i].value > mine[i].value : other[i].index < mine[i].index)
            mine[i] = other[i];
    ((context *)user_data)->calls = 1;
    return 0;
}

/* The sum of triples. */
static int add(void *into, const void *from, size_t bytes, void *user_data)
{
    triple *mine = into;
    const triple *other = from;
    size_t i, part;

    (void)user_data;
    CHECK(bytes % sizeof *mine == 0);
    for (i = 0; i < bytes / sizeof *mine; i++)
        for (part = 0; part < 3; part++)
            mine[i].parts[part] += other[i].parts[part];
    return 0;
}

/* Does nothing, or fails, after calls that are refused. */
static int failing(void *into, const void *from, size_t bytes, void *user_data)
{
    context *context = user_data;
    brv_request *request = NULL;

    (void)into, (void)from, (void)bytes;
    CHECK_FAILS(brv_barrier(context->group, NULL), BRV_ERR_ARGUMENT, "in a reduction");
    CHECK_FAILS(brv_ibarrier(context->group, &request, NULL), BRV_ERR_ARGUMENT, "in a reduction");
    CHECK_FAILS(brv_group_progress(context->group), BRV_ERR_ARGUMENT, "in a reduction");
    CHECK(request == NULL && brv_group_rank(context->group) == -1);
    return context->fails ? 7 : 0;
}

/* The largest values of all ranks, with the ranks that have them. */
static void finds_the_largest(brv_group *group, brv_type type)
{
    int32_t rank = brv_group_rank(group), size = brv_group_size(group), other;
    context context = {NULL, 0, 0};
    brv_request *request = NULL;
    place in[N], out[N];
    brv_reduction reduction;
    size_t i, n = type == BRV_BYTES ? sizeof in : N;
    int step;

    CHECK(brv_reduction_register(group, "larger", sizeof(place), larger, &context, &reduction) == BRV_OK);
    CHECK(reduction >= 256);
    for (i = 0; i < N; i++)
        in[i].value = number(3, rank, i, 2), in[i].index = rank;
    for (step = 0; step < 2; step++) {
        memset(out, 0, sizeof out);
        if (step == 0)
            CHECK(brv_all_reduce(group, in, out, n, type, reduction, NULL) == BRV_OK);
        else {
            CHECK(brv_iall_reduce(group, in, out, n, type, reduction, &request, NULL) == BRV_OK);
            /* The call goes on with it. */
            CHECK(brv_reduction_unregister(group, reduction) == BRV_OK);
            CHECK(brv_request_wait(request, BRV_FOREVER) == BRV_OK);
            brv_request_free(request);
        }
        for (i = 0; i < N; i++) {
            place best = {-3, 0};
            for (other = 0; other < size; other++)
                if (number(3, other, i, 2) > best.value)
                    best.value = number(3, other, i, 2), best.index = other;
            CHECK(out[i].value == best.value && out[i].index == best.index);
        }
    }
    CHECK(context.calls == (size > 1));
    CHECK_FAILS(brv_all_reduce(group, in, out, n, type, reduction, NULL), BRV_ERR_ARGUMENT, "not registered");
    CHECK_FAILS(brv_reduction_unregister(group, reduction), BRV_ERR_ARGUMENT, "not registered");
}

/* Elements of 12 bytes, by every collective that reduces. */
static void sums_triples(brv_group *group)
{
    static triple in[N * MOST_RANKS], out[N * MOST_RANKS];
    int32_t rank = brv_group_rank(group), size = brv_group_size(group), other;
    size_t lengths[MOST_RANKS], i, which, first, count, part;
    brv_reduction reduction;
    arguments a;

    CHECK(brv_reduction_register(group, "add", sizeof(triple), add, NULL, &reduction) == BRV_OK);
    for (i = 0; i < N * (size_t)size; i++)
        for (part = 0; part < 3; part++)
            in[i].parts[part] = number(4, rank, 3 * i + part, 1000);
    for (other = 0; other < size; other++)
        lengths[other] = sizeof(triple) * (size_t)(N - other);
    memset(&a, 0, sizeof a);
    a.in = in, a.out = out, a.n = sizeof(triple) * N, a.lengths = lengths;
    a.type = BRV_BYTES, a.reduction = reduction, a.root = size - 1;
    for (which = 0; which < sizeof ALL / sizeof *ALL; which++) {
        const char *name = ALL[which].name;
        if (!ALL[which].has_reduction)
            continue;
        CHECK(ALL[which].call(group, &a, NULL, NULL) == BRV_OK);
        count = ALL[which].has_lengths ? (size_t)(N - rank) : N;
        first = 0;
        if (strcmp(name, "reduce_scatter") == 0)
            first = N * (size_t)rank;
        else if (strcmp(name, "reduce_scatter_v") == 0)
            for (other = 0; other < rank; other++)
                first += (size_t)(N - other);
        for (i = 0; i < 3 * count && !(ALL[which].has_root && rank != a.root); i++) {
            int sum = 0;
            for (other = 0; other < size; other++)
                sum += number(4, other, 3 * first + i, 1000);
            CHECK(out[i / 3].parts[i % 3] == sum);
        }
        a.n -= 4, lengths[0] -= 4;
        CHECK_FAILS(ALL[which].call(group, &a, NULL, NULL), BRV_ERR_ARGUMENT, "a multiple of the 12");
        a.n += 4, lengths[0] += 4;
    }
    CHECK_FAILS(brv_all_reduce(group, in, out, N, BRV_F64, reduction, NULL), BRV_ERR_ARGUMENT, "BRV_BYTES");
    CHECK(brv_reduction_unregister(group, reduction) == BRV_OK);
}

static void arguments_are_checked(brv_group *group)
{
    char name[300];
    brv_reduction reduction = BRV_SUM;

    memset(name, 'x', sizeof name);
    name[256] = '\0';
#define REFUSED(group, name, size, function, reduction, words)                                               \
    CHECK_FAILS(brv_reduction_register(group, name, size, function, NULL, reduction), BRV_ERR_ARGUMENT, words)
    REFUSED(NULL, "add", 12, add, &reduction, "group is NULL");
    REFUSED(group, NULL, 12, add, &reduction, "name is NULL");
    REFUSED(group, "", 12, add, &reduction, "UTF-8 of 1 to 255 bytes");
    REFUSED(group, name, 12, add, &reduction, "UTF-8 of 1 to 255 bytes");
    REFUSED(group, "\xff", 12, add, &reduction, "UTF-8 of 1 to 255 bytes");
    REFUSED(group, "add", 0, add, &reduction, "type_size is 0");
    REFUSED(group, "add", 12, NULL, &reduction, "function is NULL");
    REFUSED(group, "add", 12, add, NULL, "reduction is NULL");
    CHECK(reduction == BRV_SUM);
    CHECK_FAILS(brv_reduction_unregister(group, BRV_SUM), BRV_ERR_ARGUMENT, "reduction is 1");
    CHECK_FAILS(brv_reduction_unregister(NULL, BRV_SUM), BRV_ERR_ARGUMENT, "group is NULL");
}

/* A status ends the call of its rank with BRV_ERR_USER, and closes the group; so does another name. */
static void failures_close_the_group(brv_group *world, int is_started)
{
    int32_t rank = brv_group_rank(world), values[N] = {0};
    context context = {NULL, 0, 0};
    brv_request *request = NULL;
    brv_reduction reduction;
    brv_status status = BRV_OK;
    int tries;

    CHECK(brv_group_duplicate(world, &context.group, NULL) == BRV_OK);
    context.fails = rank == 0;
    CHECK(brv_reduction_register(context.group, "fails", 4, failing, &context, &reduction) == BRV_OK);
    /* A rank that has all it needs may end without an error, once. */
    for (tries = 0; tries < 2 && status == BRV_OK; tries++) {
        if (!is_started) {
            status = brv_all_reduce(context.group, values, values, N, BRV_I32, reduction, NULL);
            continue;
        }
        status = brv_iall_reduce(context.group, values, values, N, BRV_I32, reduction, &request, NULL);
        CHECK(status == BRV_OK);
        status = brv_request_wait(request, BRV_FOREVER);
        brv_request_free(request);
    }
    if (rank == 0) {
        CHECK(status == BRV_ERR_USER && strcmp(brv_status_string(status), "BRV_ERR_USER") == 0);
        CHECK(strstr(brv_last_error(), "reduction \"fails\" failed with status 7") != NULL);
    } else
        CHECK(status == BRV_ERR_ABORTED && brv_last_error_rank() == 0);
    CHECK(brv_group_status(context.group) != BRV_OK);
    brv_group_free(context.group);
}

static void names_are_compared(brv_group *world)
{
    int32_t value = 0;
    brv_group *group = NULL;
    brv_reduction reduction;
    context context = {NULL, 0, 0};

    CHECK(brv_group_duplicate(world, &group, NULL) == BRV_OK);
    context.group = group;
    CHECK(brv_reduction_register(group, brv_group_rank(world) == 0 ? "one" : "other", 4, failing, &context,
                                 &reduction) == BRV_OK);
    CHECK(brv_all_reduce(group, &value, &value, 1, BRV_I32, reduction, NULL) == BRV_ERR_MISMATCH);
    brv_group_free(group);
}

int main(void)
{
    brv_group *group = join();

    arguments_are_checked(group);
    finds_the_largest(group, BRV_U64);
    finds_the_largest(group, BRV_BYTES);
    sums_triples(group);
    if (brv_group_size(group) > 1) {
        failures_close_the_group(group, 0);
        failures_close_the_group(group, 1);
        names_are_compared(group);
    }
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
