// @ts-check

import { cents, h, quiet, usdc } from "./ui.js";

const WIDTH = 640, HEIGHT = 120;
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

/** Zero, and two to four round amounts up to `top`. */
function ticks(top) {
	const power = 10 ** Math.floor(Math.log10(top / 2)), step = power * ([5, 2].find((each) => each * power <= top / 2) ?? 1);
	return [0, 1, 2, 3, 4].map((each) => each * step).filter((amount) => amount <= top);
}

/**
 * Spend by period against a daily limit, with a mark for refusals. `at` names a period. The limit is compared with the
 * day's bar; of hours, with their running total, which is drawn as a line.
 */
export function chart(data, limit, at, isOfHours = false) {
	const amounts = data.map((it) => Number(it.settled_usdc)), most = Math.max(...amounts, 0);
	const total = amounts.reduce((sum, amount) => sum + amount, 0);
	// A limit far above all spends would flatten them.
	const isLimitShown = limit !== null && limit <= (isOfHours ? total : most) * 4, hasSum = isOfHours && isLimitShown;
	const top = Math.max(hasSum ? total : most, isLimitShown ? limit : 0, 0.000001) * 1.08, step = WIDTH / data.length;
	const y = (amount) => HEIGHT - (amount / top) * HEIGHT, refused = data.reduce((sum, it) => sum + it.rejected, 0);
	if (!total && !refused) return h("p.quiet", `Nothing was spent from ${at(data[0].at)} to ${at(data.at(-1).at)}.`);
	const bars = data.map((it, i) => [
		h("rect", { class: "hit", x: i * step, y: 0, width: step, height: HEIGHT },
			h("title", `${at(it.at)}: ${usdc(it.settled_usdc)} USDC${it.rejected ? `, ${it.rejected} rejected` : ""}`)),
		amounts[i] > 0 && h("rect", {
			class: limit !== null && !isOfHours && amounts[i] > limit ? "bar over" : "bar", x: i * step + step * 0.12, width: step * 0.76, rx: 2,
			y: Math.min(y(amounts[i]), HEIGHT - 2), height: Math.max(2, HEIGHT - y(amounts[i])),
		}),
		it.rejected > 0 && h("rect", { class: "refused", x: i * step + step * 0.12, width: step * 0.76, y: HEIGHT + 5, height: Math.min(11, 3 + it.rejected), rx: 1 }),
	]);
	let sum = 0;
	const sums = amounts.map((amount, i) => `${(i + 0.5) * step},${y(sum += amount)}`).join(" ");
	const meaning = `${usdc(total)} USDC spent from ${at(data[0].at)} to ${at(data.at(-1).at)}, ${refused} rejected`;
	const edge = (i) => h("span", at(data[i].at)), level = (look, amount) => h("line", { class: look, x1: 0, x2: WIDTH, y1: y(amount), y2: y(amount) });
	return h("figure.chart", { role: "img", "aria-label": meaning },
		h("figcaption", h("strong", `${cents(total)} USDC`), refused > 0 && h("span.bad", `${refused} rejected`),
			h("span.grow"), quiet(`most in ${isOfHours ? "an hour" : "a day"} ${cents(most)}`), isLimitShown && h("span.limit", `limit ${cents(limit)} a day`)),
		h("div.plot",
			h("div.values", ticks(top).map((amount) => h("span", { style: { top: `${y(amount)}px` } }, SHORT.format(amount)))),
			h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + 16}`, preserveAspectRatio: "none", "aria-hidden": "true" }, ticks(top).map((amount) => level("base", amount)), bars,
				hasSum && h("polyline", { class: "sum", points: sums }), isLimitShown && level("limit", limit)),
			h("div.axis", edge(0), data.length > 2 && edge(data.length >> 1), edge(data.length - 1))));
}
