#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ucx_sys_wrap::fuzzing::ucx_messages(data));
