/* SPDX-License-Identifier: Apache-2.0 */
/* Draws hit ratios by capacity as an SVG chart, for light and dark pages. See replay.h. */
#include "replay.h"

#include <math.h>
#include <string.h>

#define LEFT 60
#define TOP 40
#define RIGHT 600 /* the curves' names are to the right */
#define BOTTOM 370

static const char *const colours[] = {
	"#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#888888",
};

static double x_of(const uint64_t *capacity, unsigned n, unsigned i)
{
	double low = log2((double)capacity[0]), high = log2((double)capacity[n - 1]);

	return n == 1 || high <= low
		       ? LEFT
		       : LEFT + (RIGHT - LEFT) * (log2((double)capacity[i]) - low) / (high - low);
}

static double y_of(double share, double most)
{
	return BOTTOM - (BOTTOM - TOP) * share / most;
}

/* Prints any text, escaped for XML. */
static void print_escaped(FILE *out, const char *s)
{
	for (; *s; s++)
		if (*s == '&' || *s == '<' || *s == '>')
			fprintf(out, "&#%d;", *s);
		else
			fputc(*s, out);
}

static void axes(FILE *out, const uint64_t *capacity, unsigned n, bool in_bytes, double most)
{
	for (int i = 0; i <= 4; i++) {
		double y = y_of(most * i / 4, most);

		fprintf(out,
			"<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" class=\"grid\"/>"
			"<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.2f</text>\n",
			LEFT, RIGHT, y, y, LEFT - 8, y + 4, most * i / 4);
	}
	for (unsigned i = 0; i < n; i++)
		fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
			x_of(capacity, n, i), BOTTOM + 20,
			kvm_capacity_text(capacity[i], in_bytes));
	fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%s that fit</text>\n",
		(LEFT + RIGHT) / 2, BOTTOM + 40, in_bytes ? "bytes" : "chunks");
}

void kvm_chart(FILE *out, int top, const char *title, const uint64_t *capacity, unsigned ncapacity,
	       bool in_bytes, const struct kvm_curve *curve, unsigned ncurves)
{
	double most = .05;

	for (unsigned c = 0; c < ncurves; c++)
		for (unsigned i = 0; i < ncapacity; i++)
			most = fmax(most, curve[c].share[i]);
	most = ceil(most * 20) / 20;
	fprintf(out, "<g transform=\"translate(0 %d)\">\n<text x=\"%d\" y=\"20\">hit ratio, ", top,
		LEFT);
	print_escaped(out, title);
	fprintf(out, "</text>\n");
	axes(out, capacity, ncapacity, in_bytes, most);
	for (unsigned c = 0; c < ncurves; c++) {
		const char *colour = colours[c % (sizeof colours / sizeof *colours)];

		fprintf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s points=\"",
			colour,
			c >= sizeof colours / sizeof *colours ? " stroke-dasharray=\"6 3\"" : "");
		for (unsigned i = 0; i < ncapacity; i++)
			fprintf(out, "%.1f,%.1f ", x_of(capacity, ncapacity, i),
				y_of(curve[c].share[i], most));
		fprintf(out,
			"\"/>\n<rect x=\"%d\" y=\"%u\" width=\"12\" height=\"4\" fill=\"%s\"/>"
			"<text x=\"%d\" y=\"%u\">%s</text>\n",
			RIGHT + 20, TOP + 20 * c, colour, RIGHT + 40, TOP + 6 + 20 * c,
			curve[c].name);
	}
	fprintf(out, "</g>\n");
}
