#pragma once

int bare();
const char* bare_source();
