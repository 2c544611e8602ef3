/* What is chosen for tensors with the policy "auto": the fastest way of a plan, the same on all ranks. The
 * argument is the name of the policy that is the fastest on the network that the test gives. */
#include "check.h"

enum { FIRST = 3000, BIAS = 12, LAST = 1000, TENSORS = 3, TEXT = 512 };

static const size_t lengths[TENSORS] = {FIRST, BIAS, LAST};
static const char *const names[TENSORS] = {"first", "bias", "last"};

/* The fastest of the ways that such a tensor may take, as the policy's text. */
static const char *fastest(const brv_group *group)
{
    static const char *const policies[][2] = {{"all-reduce", "dense"},
                                              {"top-k all-reduce", "topk:0.01"},
                                              {"gtop-k all-reduce", "gtopk:0.01"},
                                              {"ok-topk all-reduce", "oktopk:0.01"}};
    static char found[TEXT];
    brv_summand summand = BRV_SUMMAND_INIT;
    brv_plan_row row = BRV_PLAN_ROW_INIT;
    brv_plan *plan = NULL;
    size_t i, way;

    summand.elements = FIRST + LAST;
    summand.density = 0.01;
    CHECK(brv_plan_new(group, &summand, &plan) == BRV_OK);
    found[0] = '\0';
    for (i = 0; found[0] == '\0'; i++) {
        CHECK(brv_plan_get_row(plan, i, &row) == BRV_OK);
        for (way = 0; way < sizeof policies / sizeof *policies; way++)
            if (strcmp(row.collective, policies[way][0]) == 0)
                strcpy(found, policies[way][1]);
    }
    if (strcmp(row.wire, "pairs") == 0)
        strcat(found, ",values=pairs");
    else if (strncmp(row.wire, "packed ", 7) == 0)
        strcat(strcat(found, ",values="), row.wire + 7);
    brv_plan_free(plan);
    return found;
}

static brv_exchange *exchange_of(brv_group *group, const char *policy)
{
    brv_exchange *exchange = NULL;
    size_t i;

    CHECK(brv_exchange_new(group, &exchange) == BRV_OK);
    for (i = 0; i < TENSORS; i++)
        CHECK(brv_exchange_add_text(exchange, names[i], &lengths[i], 1, i == 1 ? "dense" : policy) == BRV_OK);
    return exchange;
}

static void average(brv_exchange *exchange, int32_t rank, float *gradients)
{
    float *pointers[TENSORS];
    size_t i, tensor;

    for (i = 0; i < FIRST + BIAS + LAST; i++)
        gradients[i] = (float)number(5, rank, i, 1000);
    for (tensor = 0; tensor < TENSORS; tensor++) {
        pointers[tensor] = gradients;
        gradients += lengths[tensor];
    }
    CHECK(brv_exchange_average(exchange, pointers, TENSORS, NULL) == BRV_OK);
}

/* A text that is the same on all ranks. */
static void same_on_all_ranks(brv_group *group, const char *text)
{
    char first[TEXT] = "";

    CHECK(strlen(text) < TEXT);
    strcpy(first, text);
    CHECK(brv_broadcast(group, first, TEXT, BRV_U8, 0, NULL) == BRV_OK);
    CHECK(strcmp(first, text) == 0);
}

static void refusals(brv_exchange *exchange)
{
    const char *policy = "untouched", *reason = policy;

    CHECK_FAILS(brv_exchange_choice(NULL, "first", &policy, &reason), BRV_ERR_ARGUMENT, "exchange is NULL");
    CHECK_FAILS(brv_exchange_choice(exchange, NULL, &policy, &reason), BRV_ERR_ARGUMENT, "name is NULL");
    CHECK_FAILS(brv_exchange_choice(exchange, "first", NULL, &reason), BRV_ERR_ARGUMENT, "policy is NULL");
    CHECK_FAILS(brv_exchange_choice(exchange, "other", &policy, &reason), BRV_ERR_ARGUMENT, "other");
    CHECK_FAILS(brv_exchange_choice(exchange, "\xff", &policy, &reason), BRV_ERR_ARGUMENT, "UTF-8");
    CHECK(strcmp(policy, "untouched") == 0 && strcmp(reason, "untouched") == 0);
}

int main(int count, char **arguments)
{
    static float ours[FIRST + BIAS + LAST], theirs[FIRST + BIAS + LAST];
    brv_group *group = join();
    brv_exchange *automatic = exchange_of(group, "auto:0.01"), *chosen;
    const char *policy = NULL, *reason = NULL, *last = NULL, *none = "";

    CHECK(brv_exchange_choice(automatic, "first", &policy, &reason) == BRV_OK);
    CHECK(policy != NULL && reason != NULL && strcmp(policy, fastest(group)) == 0);
    CHECK(count < 2 || strncmp(policy, arguments[1], strlen(arguments[1])) == 0);
    CHECK(strncmp(reason, policy, strlen(policy)) == 0);
    CHECK(strstr(reason, ": of 4000 elements, the all-reduce ") != NULL);
    CHECK(strstr(reason, " us, and the ") != NULL && strchr(reason, '\n') == NULL);
    same_on_all_ranks(group, policy);
    same_on_all_ranks(group, reason);
    /* Texts of one tensor stay when another is asked for. */
    CHECK(brv_exchange_choice(automatic, "last", &last, NULL) == BRV_OK);
    CHECK(strcmp(last, policy) == 0 && last != policy);
    CHECK(brv_exchange_choice(automatic, "bias", &none, &last) == BRV_OK && none == NULL && last == NULL);
    refusals(automatic);

    /* The tensors travel by this policy, which is the text of one. */
    chosen = exchange_of(group, policy);
    average(automatic, brv_group_rank(group), ours);
    average(chosen, brv_group_rank(group), theirs);
    CHECK(memcmp(ours, theirs, sizeof ours) == 0);
    CHECK(brv_exchange_choice(chosen, "first", &none, &last) == BRV_OK && none == NULL && last == NULL);
    CHECK(strcmp(policy, fastest(group)) == 0);
    brv_exchange_free(automatic);
    brv_exchange_free(chosen);
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
    return 0;
}
