#pragma once

namespace rankwise::app {

/// The operator's page: one file of HTML and script without outside resources, served at `/` of the admin HTTP.
extern const char* const page_html;

} // namespace rankwise::app
