/** Real documents made at test time: one page or chapter a word. */
import * as docx from 'docx';
import PDFDocument from 'pdfkit';

export async function makePdf(words: string[]): Promise<Buffer> {
  const pdf = new PDFDocument({ autoFirstPage: false });
  const chunks = pdf.toArray();
  for (const word of words) pdf.addPage().text(`This page is about ${word}.`);
  pdf.end();
  return Buffer.concat(await chunks);
}

export async function makeDocx(words: string[]): Promise<Buffer> {
  const children = words.flatMap((word) => [
    new docx.Paragraph({ text: 'A chapter', heading: docx.HeadingLevel.HEADING_1 }),
    new docx.Paragraph(`This chapter is about ${word}.`),
  ]);
  return docx.Packer.toBuffer(new docx.Document({ sections: [{ children }] }));
}
