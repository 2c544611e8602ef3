/* The log in a function of the program, until it is ended. Prints how many lines each of two functions has
 * got. The warning is that of a variable whose name is wrong, once in a process. */
#define _POSIX_C_SOURCE 200809L
#include "job.h"

struct lines {
    int count;
    brv_log_level level;
    char last[300];
};

static void note(brv_log_level level, const char *line, void *user_data)
{
    struct lines *lines = user_data;
    lines->count++;
    lines->level = level;
    strncpy(lines->last, line, sizeof lines->last - 1);
}

int main(int argc, char **argv)
{
    struct lines first, second;
    memset(&first, 0, sizeof first);
    memset(&second, 0, sizeof second);
    CHECK(argc == 2);
    CHECK_FAILS(brv_log_to_callback(note, &first, (brv_log_level)6), BRV_ERR_ARGUMENT, "level is 6");
    CHECK(setenv("BREVITY_TIMEOOT", "5", 1) == 0 && setenv("BREVITY_LOG", "warn", 1) == 0);

    CHECK(brv_log_to_callback(note, &first, BRV_LOG_WARN) == BRV_OK);
    if (strcmp(argv[1], "errors") == 0)
        CHECK(brv_log_to_callback(note, &first, BRV_LOG_ERROR) == BRV_OK);
    else if (strcmp(argv[1], "replaced") == 0)
        CHECK(brv_log_to_callback(note, &second, BRV_LOG_WARN) == BRV_OK);
    else if (strcmp(argv[1], "ended") == 0)
        CHECK(brv_log_to_callback(NULL, NULL, BRV_LOG_WARN) == BRV_OK);
    else if (strcmp(argv[1], "stderr") == 0)
        CHECK(brv_log_to_stderr() == BRV_OK);
    brv_group_free(join());
    if (first.count > 0) {
        CHECK(first.level == BRV_LOG_WARN && strchr(first.last, '\n') == NULL);
        CHECK(strstr(first.last, "BREVITY_TIMEOOT") != NULL);
    }
    printf("%d %d\n", first.count, second.count);
    return 0;
}
