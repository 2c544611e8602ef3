/* For the test programs of messages, memory and states. */
#ifndef JOB_H
#define JOB_H

#include "check.h"

/* A timeout in seconds. */
static inline brv_options within(double seconds)
{
    brv_options options = BRV_OPTIONS_INIT;
    options.timeout = seconds;
    return options;
}

#endif
