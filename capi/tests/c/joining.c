/* Joining by what the program says: `joining WAY RANKS`.
 *
 * `id`: by an identifier that goes through a pipe. `gather`: by an all-gather over pipes. `fails`: by one
 * that fails. `jobs`: several jobs, at once and one after another. Each starts RANKS processes.
 * `environment`: as the environment says, with a config beside it, and an identifier in the file $OUTPUT.id.
 * `wrong`: every field of the config is refused with a text that names it. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 8, JOBS = 3 };

/* What a rank sends to another through a pipe, in one write. */
struct part {
    int32_t from;
    uint8_t bytes[BRV_ID_BYTES];
};

static int pipes[MOST][2];
static int32_t ranks;

static void put(int32_t to, const void *bytes, size_t count)
{
    CHECK(write(pipes[to][1], bytes, count) == (ssize_t)count);
}

static void take(int32_t rank, void *bytes, size_t count)
{
    CHECK(read(pipes[rank][0], bytes, count) == (ssize_t)count);
}

static brv_config member(int32_t rank)
{
    brv_config config = BRV_CONFIG_INIT;

    config.rank = rank;
    config.world_size = ranks;
    return config;
}

static int32_t sum(brv_group *group, int32_t value)
{
    CHECK(brv_all_reduce(group, &value, &value, 1, BRV_I32, BRV_SUM, NULL) == BRV_OK);
    return value;
}

static void leave(brv_group *group)
{
    CHECK(brv_barrier(group, NULL) == BRV_OK);
    brv_group_free(group);
}

/* The same identifier on all ranks: rank 0 makes it, and pipes carry it. */
static brv_id share_id(int32_t rank)
{
    brv_id id;
    int32_t to;

    if (rank > 0) {
        take(rank, &id, sizeof id);
        return id;
    }
    CHECK(brv_id_new(NULL, &id) == BRV_OK);
    for (to = 1; to < ranks; to++)
        put(to, &id, sizeof id);
    return id;
}

static brv_group *join_by_id(int32_t rank)
{
    brv_config config = member(rank);
    brv_group *group = NULL;
    brv_id id = share_id(rank);

    config.id = &id;
    CHECK(brv_group_join(&config, &group) == BRV_OK);
    /* Nothing of it is kept. */
    memset(&id, 0, sizeof id);
    CHECK(brv_group_rank(group) == rank && brv_group_size(group) == ranks);
    return group;
}

static void by_id(int32_t rank)
{
    brv_group *group = join_by_id(rank);

    CHECK(sum(group, rank) == ranks * (ranks - 1) / 2);
    leave(group);
}

/* ---- An all-gather ------------------------------------------------------------------------------------- */

struct gathering {
    int32_t rank;
    int calls, result;
};

static int gather(const void *own, void *all, size_t bytes, void *user_data)
{
    struct gathering *gathering = user_data;
    brv_group *group = NULL;
    struct part part;
    int32_t other;

    gathering->calls++;
    CHECK(bytes == BRV_ID_BYTES);
    CHECK_FAILS(brv_group_join(NULL, &group), BRV_ERR_ARGUMENT, "in a callback");
    part.from = gathering->rank;
    memcpy(part.bytes, own, bytes);
    for (other = 0; other < ranks; other++)
        put(other, &part, sizeof part);
    for (other = 0; other < ranks; other++) {
        take(gathering->rank, &part, sizeof part);
        memcpy((char *)all + (size_t)part.from * bytes, part.bytes, bytes);
    }
    return gathering->result;
}

static void by_all_gather(int32_t rank)
{
    struct gathering gathering = {0, 0, 0};
    brv_config config = member(rank);
    brv_group *group = NULL;

    gathering.rank = rank;
    config.all_gather = gather;
    config.all_gather_data = &gathering;
    CHECK(brv_group_join(&config, &group) == BRV_OK);
    CHECK(gathering.calls == (ranks > 1));
    CHECK(sum(group, 1) == ranks);
    leave(group);
}

/* On the last rank. */
static void by_an_all_gather_that_fails(int32_t rank)
{
    struct gathering gathering = {0, 0, 0};
    brv_config config = member(rank);
    brv_group *group = NULL;

    gathering.rank = rank;
    config.all_gather = gather;
    config.all_gather_data = &gathering;
    config.join_timeout = 1;
    if (rank == ranks - 1) {
        gathering.result = 7;
        CHECK_FAILS(brv_group_join(&config, &group), BRV_ERR_TRANSPORT, "config.all_gather returned 7");
    } else {
        CHECK_FAILS(brv_group_join(&config, &group), BRV_ERR_TIMEOUT, "did not join");
        CHECK(brv_last_error_rank() == ranks - 1);
    }
    CHECK(group == NULL && gathering.calls == 1);
}

/* ---- Several jobs -------------------------------------------------------------------------------------- */

static void several_jobs(int32_t rank)
{
    brv_group *groups[JOBS];
    int job, other;

    for (job = 0; job < JOBS; job++)
        groups[job] = join_by_id(rank);
    for (job = 0; job < JOBS; job++)
        CHECK(sum(groups[job], job) == job * ranks);
    /* The end of one job is not that of another. */
    CHECK(brv_group_abort(groups[0]) == BRV_OK);
    for (job = 0; job < JOBS; job++) {
        for (other = job; other < JOBS; other++)
            CHECK(other == 0 || sum(groups[other], 1) == ranks);
        brv_group_free(groups[job]);
    }
    for (job = 0; job < JOBS; job++)
        by_id(rank);
}

/* ---- Settings in force --------------------------------------------------------------------------------- */

struct setting {
    const char *name;
    char value[256];
};

static void look(const char *name, const char *value, void *user_data)
{
    struct setting *setting = user_data;

    if (strcmp(name, setting->name) == 0)
        snprintf(setting->value, sizeof setting->value, "%s", value);
}

static void is_in_force(const brv_group *group, const char *name, const char *value)
{
    struct setting setting = {NULL, ""};

    setting.name = name;
    CHECK(brv_group_settings(group, look, &setting) == BRV_OK);
    CHECK(strstr(setting.value, value) != NULL);
}

/* ---- The environment with a config --------------------------------------------------------------------- */

static void name_of_file(char *name, size_t bytes, const char *suffix)
{
    CHECK(getenv("OUTPUT") != NULL);
    CHECK((size_t)snprintf(name, bytes, "%s.%s", getenv("OUTPUT"), suffix) < bytes);
}

/* The identifier in a file, which has its name when it is complete. */
static brv_id id_in_file(int32_t rank)
{
    const struct timespec moment = {0, 5000000};
    char name[4096], partial[4096];
    brv_id id;
    FILE *file;

    name_of_file(name, sizeof name, "id");
    name_of_file(partial, sizeof partial, "partial");
    if (rank == 0) {
        CHECK(brv_id_new(NULL, &id) == BRV_OK && (file = fopen(partial, "wb")) != NULL);
        CHECK(fwrite(&id, sizeof id, 1, file) == 1 && fclose(file) == 0 && rename(partial, name) == 0);
        return id;
    }
    while ((file = fopen(name, "rb")) == NULL)
        nanosleep(&moment, NULL);
    CHECK(fread(&id, sizeof id, 1, file) == 1 && fclose(file) == 0);
    return id;
}

static void beside_the_environment(void)
{
    brv_config config = BRV_CONFIG_INIT;
    brv_group *first = NULL, *second = NULL;
    brv_id id;

    /* What is set takes precedence, of some settings rank 0's. */
    config.transport = "tcp";
    config.timeout = 0.25;
    config.any_order = BRV_ORDER_FIXED;
    config.machine = "between:50,2,8";
    config.algorithm = "all-reduce:doubling";
    config.segment = 65536;
    CHECK(brv_group_join(&config, &first) == BRV_OK);
    ranks = brv_group_size(first);
    is_in_force(first, "any_order", "0");
    is_in_force(first, "machine", "between:50,2,8");
    is_in_force(first, "algorithm", "all-reduce:doubling");
    is_in_force(first, "segment", "65536");
    CHECK(ranks == 1 || strcmp(brv_group_transport(first), "tcp") == 0);

    id = id_in_file(brv_group_rank(first));
    config.timeout = BRV_UNSET;
    config.any_order = 0;
    config.algorithm = NULL;
    config.segment = 0;
    config.id = &id;
    CHECK(brv_group_join(&config, &second) == BRV_OK && sum(second, 1) == ranks);
    is_in_force(second, "any_order", "1");
    is_in_force(second, "algorithm", "all-reduce:direct");
    is_in_force(second, "segment", "4096");
    if (ranks > 1 && brv_group_rank(first) == 0)
        CHECK_FAILS(brv_barrier(first, NULL), BRV_ERR_TIMEOUT, "timed out after 0.");
    /* The others keep the first group until then: else rank 0 would find them lost. */
    CHECK(brv_barrier(second, NULL) == BRV_OK);
    brv_group_free(first);
    brv_group_free(second);
}

/* ---- Wrong configs ------------------------------------------------------------------------------------- */

static const char *const LONG = "12345678901234567890123456789012345678901234567890123456789012345";

#define WRONG(change, status, words)                                                                         \
    do {                                                                                                     \
        brv_config config = member(0);                                                                       \
        brv_group *group = (brv_group *)&config;                                                             \
        change;                                                                                              \
        CHECK_FAILS(brv_group_join(&config, &group), status, words);                                         \
        CHECK(group == NULL && strchr(brv_last_error(), '\n') == NULL);                                      \
    } while (0)
#define WRONG_FIELD(change, words) WRONG(change, BRV_ERR_ENVIRONMENT, words)

static void wrong_form(void)
{
    char room[sizeof(brv_config) + 8] = {0};
    brv_group *group = NULL;

    CHECK_FAILS(brv_group_join((const brv_config *)(const void *)(room + 1), &group), BRV_ERR_ARGUMENT,
                "multiple of 8");
    WRONG(config.size--, BRV_ERR_ARGUMENT, "config.size is ");
    WRONG(config.size--, BRV_ERR_ARGUMENT, "BRV_CONFIG_INIT");
    WRONG(config.magic++, BRV_ERR_ARGUMENT, "config.magic is 0x62727664");
    WRONG(config.version = 1, BRV_ERR_ARGUMENT,
          "config.version is 1, expected 2: begin with BRV_CONFIG_INIT");
    WRONG(config.reserved[2] = 1, BRV_ERR_ARGUMENT, "reserved");
    WRONG(memset(&config, 0, sizeof config), BRV_ERR_ARGUMENT, "BRV_CONFIG_INIT");
}

static void wrong_places(void)
{
    brv_id id = {{0}};

    WRONG_FIELD(config.rank = BRV_UNSET, "config.rank is not set beside config.world_size");
    WRONG_FIELD(config.world_size = BRV_UNSET, "config.world_size is not set beside config.rank");
    WRONG_FIELD(config.rank = -2, "config.rank is -2");
    WRONG_FIELD(config.rank = 1, "config.rank is 1");
    WRONG_FIELD(config.world_size = 0, "config.world_size is 0");
    WRONG_FIELD(config.world_size = -5, "config.world_size is -5");
    WRONG_FIELD(config.world_size = 2, "config.address is not set");
    WRONG_FIELD(config.address = "nowhere", "config.address is \"nowhere\"");
    WRONG_FIELD(config.id = &id, "config.id: the job id is ");
    WRONG_FIELD((config.id = &id, config.address = "127.0.0.1:7"), "config.id is set beside config.address");
    WRONG_FIELD((config.all_gather = gather, config.address = "127.0.0.1:7"),
                "config.all_gather is set beside config.address");
    WRONG_FIELD((config.id = &id, config.all_gather = gather), "config.all_gather is set beside config.id");
    WRONG_FIELD((config.world_size = 2, config.address = "127.0.0.1:7"), "config.key is not set");
    WRONG_FIELD((config.world_size = 2, config.address = "127.0.0.1:7"), "config.job");
}

static void wrong_fields(void)
{
    WRONG_FIELD(config.key = "short", "config.key is too short");
    WRONG_FIELD(config.key = "\xff\xff\xff\xff", "config.key is no UTF-8");
    WRONG(config.key_file = "/nowhere/key", BRV_ERR_TRANSPORT, "config.key_file");
    WRONG_FIELD((config.key = LONG, config.key_file = "/nowhere/key"),
                "config.key_file is set beside config.key");
    WRONG_FIELD(config.job = LONG, "config.job is a name of 65 bytes");
    WRONG_FIELD(config.transport = "tpc", "config.transport is \"tpc\"");
    WRONG_FIELD(config.announce = "", "config.announce is \"\"");
    WRONG_FIELD(config.place_of_return = "nowhere", "config.place_of_return is \"nowhere\"");
    WRONG_FIELD(config.host_id = "", "config.host_id is a name of 0 bytes");
    WRONG_FIELD(config.join_timeout = 0, "config.join_timeout is 0");
    WRONG_FIELD(config.join_timeout = (double)NAN, "config.join_timeout is NaN");
    WRONG_FIELD(config.timeout = -2, "config.timeout is -2");
    WRONG_FIELD(config.timeout = (double)INFINITY, "config.timeout is inf");
    WRONG_FIELD(config.shared_memory = 2, "config.shared_memory is 2");
    WRONG_FIELD(config.encrypt = -2, "config.encrypt is -2");
    WRONG_FIELD((config.encrypt = 1, config.transport = "ucx"),
                "config.encrypt is 1 beside config.transport ucx");
    WRONG_FIELD(config.progress_thread = 7, "config.progress_thread is 7");
    WRONG_FIELD((config.first_port = 7, config.last_port = 5), "config.first_port to last_port is 7-5");
    WRONG_FIELD(config.last_port = 5, "config.first_port to last_port is 0-5");
    WRONG_FIELD(config.any_order = 3, "config.any_order is 3");
    WRONG_FIELD(config.machine = "fast", "config.machine: ");
    WRONG_FIELD(config.machine = "\xff", "config.machine is no UTF-8");
    WRONG_FIELD(config.algorithm = "all-reduce:rings", "config.algorithm: ");
    WRONG_FIELD(config.segment = 63, "config.segment is 63");
    WRONG_FIELD(config.segment = UINT64_MAX, "config.segment is ");
}

static void wrong_identifiers(void)
{
    brv_config config = BRV_CONFIG_INIT;
    brv_id id;

    CHECK_FAILS(brv_id_new(NULL, NULL), BRV_ERR_ARGUMENT, "id is NULL");
    config.magic = 0;
    CHECK_FAILS(brv_id_new(&config, &id), BRV_ERR_ARGUMENT, "config.magic is 0x0");
    config = member(0);
    config.network_interface = "nowhere0";
    CHECK_FAILS(brv_id_new(&config, &id), BRV_ERR_ENVIRONMENT, "config.network_interface is \"nowhere0\"");
    config.network_interface = NULL;
    config.key = "short";
    CHECK_FAILS(brv_id_new(&config, &id), BRV_ERR_ENVIRONMENT, "config.key is too short");
    /* The place may be where the identifier goes. */
    config.key = NULL;
    config.id = &id;
    memset(&id, 0, sizeof id);
    CHECK(brv_id_new(&config, &id) == BRV_OK);
}

/* A config with nothing wrong, of one rank. */
static void right(void)
{
    brv_config config = member(0);
    brv_group *group = NULL;

    config.key = LONG;
    config.job = "job";
    config.transport = "tcp";
    config.host_id = "host";
    config.announce = "host:77";
    config.join_timeout = config.timeout = 0.5;
    config.shared_memory = config.encrypt = config.progress_thread = 0;
    config.first_port = 5000;
    config.last_port = 6000;
    config.any_order = BRV_ORDER_ANY;
    config.machine = "between:50,2,8";
    config.algorithm = "all-reduce:halving";
    config.segment = 4096;
    CHECK(brv_group_join(&config, &group) == BRV_OK && brv_group_size(group) == 1);
    is_in_force(group, "any_order", "1");
    is_in_force(group, "machine", "between:50,2,8");
    is_in_force(group, "algorithm", "all-reduce:halving");
    is_in_force(group, "segment", "4096");
    leave(group);
}

/* ---- Processes ----------------------------------------------------------------------------------------- */

static int run(void (*way)(int32_t))
{
    int32_t rank;
    int status, failed = 0;

    for (rank = 0; rank < ranks; rank++)
        CHECK(pipe(pipes[rank]) == 0);
    for (rank = 0; rank < ranks; rank++) {
        pid_t child = fork();

        CHECK(child >= 0);
        if (child == 0) {
            way(rank);
            return 0;
        }
    }
    for (rank = 0; rank < ranks; rank++) {
        CHECK(wait(&status) > 0);
        failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    return failed;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    ranks = (int32_t)atoi(argv[2]);
    CHECK(ranks >= 1 && ranks <= MOST);
    if (strcmp(argv[1], "id") == 0)
        return run(by_id);
    if (strcmp(argv[1], "gather") == 0)
        return run(by_all_gather);
    if (strcmp(argv[1], "fails") == 0)
        return run(by_an_all_gather_that_fails);
    if (strcmp(argv[1], "jobs") == 0)
        return run(several_jobs);
    if (strcmp(argv[1], "environment") == 0) {
        beside_the_environment();
        return 0;
    }
    wrong_form();
    wrong_places();
    wrong_fields();
    wrong_identifiers();
    right();
    return 0;
}
